//! Contract of snapshots: records of VMs and vCPUs at rest (crate `stile-snapshot`).

use stile_board::pc;
use stile_snapshot::x86_64::{FEATURES, Machine, Vcpu as SavedVcpu};
use stile_snapshot::{decode, encode};
use stile_speculation::x86_64::leaf_7;

use crate::arch::contract::{Counter, Snapshots, VcpuPart};
use crate::arch::x86_64::Arch;
use crate::arch::x86_64::emulation::devices;
use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::host::{speculation, timer};
use crate::cpu::SCHEDULE;
use crate::vm::{Vcpu, Vm};
use crate::wall_clock;

/// Divisor for the greatest difference of two counters' frequencies: 1/2000, or 500 ppm. Frequencies may have been
/// measured; NTP corrects such a difference.
const DEVIATION: u64 = 2_000;

const FORM: &str = "the snapshot's records are not those of this VM";

impl Snapshots for Arch {
    const PREPARES: bool = false;

    fn obstacle(vm: &Vm) -> Option<&'static str> {
        let nested = vm.arch.nested.as_ref().map(|_| "a VM with `nested` can't be saved or restored yet: stop it instead");
        // A snapshot must not make its VM a trusted one.
        let trusted = vm.arch.direct.as_ref().map(|_| "a VM with `ipi = \"direct\"` can't be saved or restored: stop it instead");
        let functions = "a VM that owns PCI functions (disks, networks) can't be saved, as they stay with the machine: stop it instead";
        let links = "a VM that serves devices, or is served some, can't be saved yet: stop it instead";
        vm.arch.served.map(|_| links).or(vm.arch.functions.map(|_| functions)).or(nested).or(trusted)
    }

    /// The machine, vCPUs.
    fn parts(vm: &Vm) -> usize {
        1 + vm.vcpus.len()
    }

    fn save(vm: &'static Vm, part: usize, since: u64, to: &mut [u8]) -> Option<usize> {
        match part.checked_sub(1) {
            None => save_machine(vm, since, to),
            Some(vcpu) => save_vcpu(vm.vcpus.get(vcpu)?, since, to),
        }
    }

    fn restore(vm: &'static Vm, part: usize, since: u64, from: &[u8]) -> Result<(), &'static str> {
        match part.checked_sub(1) {
            None => restore_machine(vm, since, from),
            Some(vcpu) => restore_vcpu(vm, vm.vcpus.get(vcpu).ok_or(FORM)?, since, from),
        }
    }

    fn advance(vm: &'static Vm, ticks: u64) {
        for vcpu in &vm.vcpus {
            // SAFETY: the VM has not run since its reset, and its power state, which is locked, keeps its vCPUs off.
            unsafe { vcpu.arch.advance_time(ticks) };
        }
        vm.arch.devices.advance(ticks);
    }

    fn complete(vm: &'static Vm) {
        vm.arch.place.choose_access_page(|| vm.vcpus.iter().all(|vcpu| vcpu.arch.pages.is_at(pc::LOCAL_APIC)));
        devices::restore_lines(vm);
    }

    fn is_on(vm: &Vm, vcpu: usize) -> bool {
        vm.vcpus.get(vcpu).is_some_and(|vcpu| vcpu.arch.events.is_scheduled())
    }
}

/// Features of this CPU that guests see or that change their state, and mitigations that Stile offers them. Whether the machine has
/// more than one CPU is not among them.
fn features() -> [u32; FEATURES] {
    /// HTT, in EDX of leaf 1, and CmpLegacy, in ECX of AMD's leaf 8000_0001H: guests have them by the number of their vCPUs.
    const HTT: u32 = 1 << 28;
    const CMP_LEGACY: u32 = 1 << 1;
    let (version, structured, xsave) = (cpuid(1, 0), cpuid(7, 0), cpuid(0xd, 0));
    let extended = cpuid(0x8000_0001, 0);
    let sizes = cpuid(0x8000_0008, 0).eax;
    let xsaves = cpuid(0xd, 1).eax;
    let basic = [version.eax, version.ecx, version.edx & !HTT, structured.ebx, structured.ecx, structured.edx];
    let more = [xsave.eax, xsaves, extended.ecx & !CMP_LEGACY, extended.edx, sizes];
    let seen = speculation::guests();
    let has_capabilities = seen.leaf_7_of_guests() & leaf_7::ARCH_CAPABILITIES != 0;
    let capabilities = if has_capabilities { seen.capabilities_of_guests() } else { 0 };
    let mitigations = [seen.leaf_7_of_guests() | seen.leaf_8_of_guests(), capabilities as u32, (capabilities >> 32) as u32];
    core::array::from_fn(|index| basic.into_iter().chain(more).chain(mitigations).nth(index).unwrap_or(0))
}

#[inline(never)]
fn save_machine(vm: &Vm, since: u64, to: &mut [u8]) -> Option<usize> {
    let clock = vm.devices.clock.inspect(|model, _| model.save());
    let io_apic = vm.arch.io_apic.lock().save();
    vm.devices.uart.inspect(|uart, input| {
        let mut record = Machine {
            features: features(),
            frequency: timer::frequency(),
            time: wall_clock::nanoseconds_at(since),
            acpi_timer: 0,
            uart: uart.save(),
            input: input.as_slices().into(),
            clock,
            io_apic,
            pics: Default::default(),
            pit: Default::default(),
            keyboard: Default::default(),
            screen: Default::default(),
            power: Default::default(),
            fw_cfg: Default::default(),
        };
        vm.arch.devices.save(since, &mut record);
        encode(&record, to)
    })
}

#[inline(never)]
fn restore_machine(vm: &Vm, since: u64, from: &[u8]) -> Result<(), &'static str> {
    let record: Machine<'_> = decode(from).ok_or(FORM)?;
    if record.features != features() {
        return Err("this machine's CPUs have other features than those of the machine where the VM was saved: use the same CPU model");
    }
    if record.frequency.abs_diff(timer::frequency()) > timer::frequency() / DEVIATION {
        return Err("this machine's counter has another frequency than that of the machine where the VM was saved");
    }
    vm.power.set_saved_at(record.time);
    vm.arch.io_apic.lock().restore(&record.io_apic);
    vm.arch.devices.restore(vm, &record, since);
    vm.devices.clock.inspect(|clock, now| clock.restore(&record.clock, now, wall_clock::seconds_in(record.time)));
    vm.devices.uart.inspect(|uart, input| {
        uart.restore(&record.uart);
        input.clear();
        record.input.iter().copied().flatten().copied().for_each(|byte| {
            // Bytes beyond the backlog are dropped, as with arriving input.
            let _ = input.push_back(byte);
        });
    });
    Ok(())
}

#[inline(never)]
fn save_vcpu(vcpu: &Vcpu, since: u64, to: &mut [u8]) -> Option<usize> {
    let waited = SCHEDULE.times(vcpu.id, timer::now()).waited;
    let arch = &vcpu.arch;
    // SAFETY: the VM is paused, and its power state, which is locked, keeps its vCPUs off every CPU.
    unsafe { arch.begin() };
    // SAFETY: the vCPU is off every CPU, so that no other reference to its state exists.
    let (context, apic) = unsafe { (arch.context(), arch.apic()) };
    let apic = apic.save(since);
    let (debug, msrs) = context.save_registers();
    let record = SavedVcpu {
        events: arch.events.save(),
        halted: context.halted,
        general: context.general,
        state: context.save_state(arch.events.is_scheduled()),
        msrs,
        debug,
        xcr0: context.extended.xcr0,
        extended: context.extended.saved(),
        apic,
        tsc: since.wrapping_add(arch.msrs.tsc_offset()),
        emulated: arch.msrs.save(),
        stolen: vcpu.stolen.of(waited),
    };
    encode(&record, to)
}

#[inline(never)]
fn restore_vcpu(vm: &'static Vm, vcpu: &'static Vcpu, since: u64, from: &[u8]) -> Result<(), &'static str> {
    let record: SavedVcpu<'_> = decode(from).ok_or(FORM)?;
    let arch = &vcpu.arch;
    // SAFETY: the VM has not run since its reset, and its power state, which is locked, keeps its vCPUs off.
    let (context, apic) = unsafe { (arch.context(), arch.apic()) };
    if !context.restore(&record) {
        return Err("a vCPU of the snapshot is in a state that vCPUs don't have");
    }
    let offset = record.tsc.wrapping_sub(since);
    context.set_tsc_offset(offset);
    arch.msrs.restore(&record.emulated, offset);
    let physical_bits = cpuid(0x8000_0008, 0).eax as u8;
    apic.restore(&record.apic, physical_bits, since).map_err(|_| "a vCPU of the snapshot has an impossible local APIC")?;
    arch.events.restore(record.events, arch.index == 0);
    if let Some(ticks) = record.stolen {
        // The vCPU has not waited yet.
        vcpu.stolen.begin(0u64.wrapping_sub(ticks));
        let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(Arch::frequency().max(1));
        arch.show_stolen_time(vm, nanoseconds as u64);
    }
    Ok(())
}
