//! Contract of snapshots: records of VMs and vCPUs at rest (crate `stile-snapshot`).

use core::ops::Range;

use stile_board::{intid, mpidr};
use stile_snapshot::aarch64::{EL1_REGISTERS, Machine, Vcpu as SavedVcpu};
use stile_snapshot::gic::Spis;
use stile_snapshot::{countdown, decode, encode, pstate};

use crate::arch::aarch64::Arch;
use crate::arch::aarch64::host::{features, timer};
use crate::arch::aarch64::interrupts::{delivery, direct};
use crate::arch::aarch64::vcpu::registers::{self, El1};
use crate::arch::contract::{Counter, Snapshots, VcpuPart};
use crate::cpu::SCHEDULE;
use crate::device::alarm;
use crate::vm::{Vcpu, Vm};
use crate::wall_clock;

const _: () = assert!(EL1_REGISTERS == registers::EL1_REGISTERS);

/// Index in [`Machine::id_registers`] and place of ID_AA64PFR0_EL1.EL0: 2 if EL0 supports AArch32.
const PFR0: usize = 4 << 3;

const FORM: &str = "the snapshot's records are not those of this VM";

impl Snapshots for Arch {
    const PREPARES: bool = true;

    fn obstacle(vm: &Vm) -> Option<&'static str> {
        if vm.vcpus.iter().any(|vcpu| vcpu.arch.has_el2) {
            return Some("VMs with `nested` can't be saved yet: stop it instead");
        }
        if vm.arch.functions.is_some() {
            return Some(
                "a VM that owns PCI functions (disks, networks, shared folders) can't be saved, as they stay with the machine: stop it instead",
            );
        }
        if vm.arch.served.is_some() {
            return Some("a VM that serves devices, or is served some, can't be saved yet: stop it instead");
        }
        vm.arch.flash.is_some().then_some("VMs that start from firmware can't be saved yet: stop it instead")
    }

    /// The machine, blocks of SPIs, vCPUs.
    fn parts(vm: &Vm) -> usize {
        1 + block_count(vm) + vm.vcpus.len()
    }

    /// Returns their interrupts from list registers to the distributor and redistributors.
    fn prepare(vm: &'static Vm, vcpus: Range<usize>) {
        direct::collect_late(vm);
        vm.vcpus.get(vcpus).unwrap_or_default().iter().for_each(|vcpu| withdraw(vm, vcpu));
    }

    fn save(vm: &'static Vm, part: usize, since: u64, to: &mut [u8]) -> Option<usize> {
        let blocks = block_count(vm);
        match part {
            0 => save_machine(vm, since, to),
            _ if part <= blocks => encode(&save_spis(vm, part - 1)?, to),
            _ => {
                let vcpu = vm.vcpus.get(part - 1 - blocks)?;
                // Those that arrived since.
                direct::collect_late(vm);
                withdraw(vm, vcpu);
                save_vcpu(vcpu, since, to)
            }
        }
    }

    fn restore(vm: &'static Vm, part: usize, since: u64, from: &[u8]) -> Result<(), &'static str> {
        let blocks = block_count(vm);
        match part {
            0 => restore_machine(vm, since, from),
            _ if part <= blocks => {
                let spis: Spis = decode(from).ok_or(FORM)?;
                vm.arch.distributor.lock().restore(part - 1, &spis);
                Ok(())
            }
            _ => restore_vcpu(vm, vm.vcpus.get(part - 1 - blocks).ok_or(FORM)?, since, from),
        }
    }

    fn advance(vm: &'static Vm, ticks: u64) {
        vm.arch.hold_time(ticks.wrapping_neg());
        for vcpu in &vm.vcpus {
            // SAFETY: the VM has not run since its reset, and its power state, which is locked, keeps its vCPUs off.
            let compare = unsafe { &mut vcpu.arch.context().el1[El1::CntpCval as usize] };
            // At least what has come.
            *compare = compare.saturating_sub(ticks);
        }
    }

    fn complete(vm: &'static Vm) {
        let level = vm.devices.uart.inspect(|model, _| model.irq());
        let (alarm_level, at) = vm.devices.clock.inspect(|model, _| (model.irq(), model.deadline()));
        alarm::set(vm.number, at);
        let power = vm.arch.power.lock();
        let mut distributor = vm.arch.distributor.lock();
        let mut kick = distributor.set_level(intid::PL011, level);
        kick |= distributor.set_level(intid::PL031, alarm_level);
        for vcpu in 0..vm.vcpus.len() {
            kick |= distributor.set_online(vcpu, !power.is_off(vcpu));
        }
        vm.arch.read_shadow.update_all(&distributor);
        drop(distributor);
        drop(power);
        delivery::deliver(vm, kick);
        vm.vcpus.iter().for_each(|vcpu| vcpu.arch.requests.announce_spis());
    }

    fn is_on(vm: &Vm, vcpu: usize) -> bool {
        !vm.arch.power.lock().is_off(vcpu)
    }
}

fn block_count(vm: &Vm) -> usize {
    vm.arch.distributor.lock().block_count()
}

/// Returns all interrupts of a vCPU at rest from list registers to the distributor and its redistributor, also those
/// that arrived since the last call.
fn withdraw(vm: &Vm, vcpu: &Vcpu) {
    let mut distributor = vm.arch.distributor.lock();
    let requests = vcpu.arch.requests.take();
    // Other vCPUs sync at their next load.
    let _ = vcpu.arch.redistributor.lock().withdraw(&mut distributor, requests);
    vcpu.arch.requests.announce_spis();
}

/// A block of SPIs, with those that devices have raised in a vCPU's list registers since [`Snapshots::prepare`].
fn save_spis(vm: &Vm, block: usize) -> Option<Spis> {
    loop {
        let distributor = vm.arch.distributor.lock();
        let holders = distributor.holders(block);
        if holders.is_empty() {
            return distributor.save(block);
        }
        drop(distributor);
        holders.into_iter().filter_map(|vcpu| vm.vcpus.get(vcpu)).for_each(|vcpu| withdraw(vm, vcpu));
    }
}

fn save_machine(vm: &Vm, since: u64, to: &mut [u8]) -> Option<usize> {
    let mut id_registers = [[0; 32]; 2];
    id_registers.as_flattened_mut().copy_from_slice(&vm.arch.id_registers);
    let enables = vm.arch.distributor.lock().group_enables();
    let clock = vm.devices.clock.inspect(|model, _| model.save());
    vm.devices.uart.inspect(|uart, input| {
        let record = Machine {
            id_registers,
            vector_length: features::vector_length(),
            frequency: timer::frequency(),
            time: wall_clock::nanoseconds_at(since),
            virtual_count: since.wrapping_sub(vm.arch.held_time()),
            enables,
            uart: uart.save(),
            input: input.as_slices().into(),
            clock,
        };
        encode(&record, to)
    })
}

fn restore_machine(vm: &Vm, since: u64, from: &[u8]) -> Result<(), &'static str> {
    let record: Machine<'_> = decode(from).ok_or(FORM)?;
    if record.id_registers.as_flattened() != vm.arch.id_registers || record.vector_length != features::vector_length() {
        return Err("this machine's CPUs have other features than those of the machine where the VM was saved: use the same CPU model");
    }
    if record.frequency != timer::frequency() {
        return Err("this machine's counter has another frequency than that of the machine where the VM was saved");
    }
    vm.power.set_saved_at(record.time);
    vm.arch.set_virtual_count(record.virtual_count, since);
    vm.arch.distributor.lock().restore_enables(record.enables);
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

/// Not inlined, as [`restore_vcpu`] is not: a record takes 2 KiB of the stack.
#[inline(never)]
fn save_vcpu(vcpu: &Vcpu, since: u64, to: &mut [u8]) -> Option<usize> {
    let waited = SCHEDULE.times(vcpu.id, timer::now()).waited;
    let on = !vcpu.vm().arch.power.lock().is_off(vcpu.arch.index);
    let private = vcpu.arch.redistributor.lock().save();
    // SAFETY: the VM is paused, and its power state, which is locked, keeps its vCPUs off every CPU.
    let context = unsafe { vcpu.arch.context() };
    let (fpcr, fpsr, zcr, z, p) = context.fp.saved();
    let mut el1 = context.el1;
    // The physical counter is the machine's: its timer keeps the time that is left.
    let compare = &mut el1[El1::CntpCval as usize];
    *compare = countdown::left(*compare, since);
    let debug = context.debug.save(&mut el1[El1::Mdscr as usize]);
    let record = SavedVcpu {
        on,
        pc: context.pc,
        pstate: context.pstate,
        serror: context.serror,
        el1,
        keys: context.keys.saved(),
        general: context.general,
        debug,
        fpcr,
        fpsr,
        zcr,
        z,
        p,
        private,
        stolen: vcpu.stolen.of(waited),
    };
    encode(&record, to)
}

#[inline(never)]
fn restore_vcpu(vm: &'static Vm, vcpu: &Vcpu, since: u64, from: &[u8]) -> Result<(), &'static str> {
    let record: SavedVcpu<'_> = decode(from).ok_or(FORM)?;
    let el0_32 = vm.arch.id_registers[PFR0] & 0xf == 2;
    let pstate = pstate::allowed(record.pstate, el0_32).ok_or("a vCPU of the snapshot is in a mode that vCPUs don't have")?;
    // SAFETY: the VM has not run since its reset, and its power state, which is locked, keeps its vCPUs off.
    let context = unsafe { vcpu.arch.context() };
    context.reset(1 << 31 | mpidr(vcpu.arch.index), record.pc, 0);
    context.pstate = pstate;
    context.serror = record.serror;
    // The guest writes all of these without a trap.
    (context.el1, context.general) = (record.el1, record.general);
    context.keys.restore(&record.keys);
    context.debug.restore(&record.debug, &mut context.el1[El1::Mdscr as usize]);
    if !context.fp.restore((record.fpcr, record.fpsr, record.zcr, record.z, record.p)) {
        return Err(FORM);
    }
    let compare = &mut context.el1[El1::CntpCval as usize];
    *compare = countdown::compare(*compare, since);
    let mut distributor = vm.arch.distributor.lock();
    vcpu.arch.redistributor.lock().restore(&mut distributor, &record.private);
    drop(distributor);
    vm.arch.power.lock().set_on(vcpu.arch.index, record.on);
    if let Some(ticks) = record.stolen {
        // The vCPU has not waited yet.
        vcpu.stolen.begin(0u64.wrapping_sub(ticks));
        let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(Arch::frequency().max(1));
        vcpu.arch.show_stolen_time(vm, nanoseconds as u64);
    }
    Ok(())
}
