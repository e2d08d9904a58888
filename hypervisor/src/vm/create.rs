//! Making the VMs of the configuration.

use stile_blob::{Blob, Interrupts, Nested, Share};
use stile_ledger::Ledger;
use stile_paging::frames::{MAX_PIECES, Piece};
use stile_sched::{CpuSet, VcpuId};

use super::{BLOB, Ram, Start, VMS, Vcpu, Vm, power};
use crate::arch::contract::{Counter, Platform, VcpuPart, VmPart};
use crate::arch::{self, Arch};
use crate::console::log;
use crate::cpu::SCHEDULE;
use crate::device::Devices;
use crate::memory;

/// Makes every VM that the blob names. They are not yet started.
///
/// # Errors
/// In words: what doesn't fit this board.
pub fn create(blob: Blob<'static>) -> Result<(), &'static str> {
    let machine = blob.machine.clone();
    BLOB.set(blob);
    for (number, config) in machine.vms.iter().enumerate() {
        if !Arch::can_start(config.mode) {
            return Err("a VM's first vCPU would start in a state that this architecture does not have");
        }
        let mut pieces = heapless::Vec::<Piece, MAX_PIECES>::new();
        for range in Arch::ram(config.ram_base, config.memory).into_iter().filter(|range| !range.is_empty()) {
            let size = range.end - range.start;
            let more = memory::allocate_guest(range.start, size).map_err(|error| {
                log!("{}: {} MiB of memory: {error:?}; {} MiB are free", config.name, size >> 20, memory::available() >> 20);
                "a VM's memory does not fit into this board's"
            })?;
            pieces.extend_from_slice(&more).map_err(|()| "a VM's memory is in too many pieces")?;
        }
        let mut techniques = config.techniques;
        // A vCPU that sleeps in an untrapped WFI would use up the cap.
        techniques.wfi_passthrough &= config.share.cap.is_none();
        // LPIs of any VM's functions come to any CPU; the ablated vectors have list registers of their own.
        let has_functions = machine.vms.iter().any(|vm| !vm.functions.is_empty());
        if techniques.nested != Nested::Off
            || !config.pinned
            || !techniques.wfi_passthrough
            || has_functions
            || machine.vms.iter().any(|vm| vm.techniques.ablate.is_some())
        {
            techniques.interrupts = Interrupts::Virtual;
        }
        let arch = arch::Vm::new(number, config, &pieces, techniques)?;
        let mut vcpus = heapless::Vec::new();
        share(number as u8, config.share);
        for index in 0..config.vcpus {
            let id = VcpuId::new(number as u8, index).ok_or("more VMs or vCPUs than there may be")?;
            let ledger = memory::allocate::<Ledger>();
            // SAFETY: all zero is a valid ledger, if not an empty one; `Vcpu::new` resets it.
            let ledger = unsafe { ledger.assume_init_mut() };
            let vcpu = Vcpu::new(id, arch::Vcpu::new(usize::from(index), usize::from(config.vcpus), techniques), ledger);
            let mut schedule = SCHEDULE.lock();
            let cpus = config.cpus_of(usize::from(index), schedule.scheduler.online().bits());
            schedule
                .scheduler
                .configure(id, CpuSet::from_bits(cpus))
                .map_err(|_| "a VM may use only CPUs that this board does not have")?;
            drop(schedule);
            let vcpu: &'static Vcpu = memory::allocate().write(vcpu);
            let _ = vcpus.push(vcpu);
        }
        let vm: &'static Vm = memory::allocate().write(Vm {
            number,
            name: config.name,
            start: Start { pc: config.entry, info: config.info, mode: config.mode },
            ram: Ram::new(pieces, config.loads.clone()),
            on_reset: config.on_reset,
            techniques,
            vcpus,
            power: power::Power::new(!config.functions.is_empty()),
            has_functions: !config.functions.is_empty(),
            devices: Devices::new(number, usize::from(config.vcpus), !config.functions.is_empty())?,
            arch,
        });
        for vcpu in &vm.vcpus {
            vcpu.belongs_to(vm);
        }
        VMS[number].set(vm);
    }
    Ok(())
}

/// Tells the scheduler how much CPU time a VM gets.
fn share(vm: u8, share: Share) {
    let hz = Arch::frequency();
    let period = hz * u64::from(Share::PERIOD_US) / 1_000_000;
    let cap = share.cap.map(|percent| (period * u64::from(percent) / 100, period));
    SCHEDULE.lock().scheduler.set_share(vm, share.weight, cap);
}
