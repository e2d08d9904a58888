//! The guests: what a vCPU does between two exits, and how it exits.

use std::sync::atomic::{AtomicU64, Ordering};

use stile_board::map::{PL011_BASE, RAM_BASE};
use stile_ledger::RowId;

use super::VCPUS;
use super::counts::count;
use super::operator::is_paused;
use super::random::random;
use crate::arch::contract::Host;
use crate::arch::devices::Device;
use crate::arch::{Arch, Cpu, fake};
use crate::cpu::{self, Leave, Outcome};
use crate::vm::power::{self, End};
use crate::{trace, vm};

/// vCPUs that were woken by a handler whose own vCPU continued.
pub static WOKEN_BESIDE: AtomicU64 = AtomicU64::new(0);
/// Those of them whose wake-up the scheduler learned of only later.
pub static WOKEN_LATER: AtomicU64 = AtomicU64::new(0);

/// The last life in which each VM used its memory.
static LIVES: [AtomicU64; VCPUS.len()] = [const { AtomicU64::new(0) }; VCPUS.len()];
/// Number of times that each VM used its memory since it was created.
static USES: [AtomicU64; VCPUS.len()] = [const { AtomicU64::new(0) }; VCPUS.len()];

/// Expects a new VM with this number, whose memory has its first contents.
pub fn forget(vm: usize) {
    LIVES[vm].store(0, Ordering::Relaxed);
    USES[vm].store(0, Ordering::Relaxed);
}

/// Expects a restored VM to continue with the memory of one that had used its memory `uses` times.
pub fn expect_restored(vm: &vm::Vm, uses: u64) {
    LIVES[vm.number].store(vm.arch.lives.load(Ordering::Relaxed), Ordering::Relaxed);
    USES[vm.number].store(uses, Ordering::Relaxed);
}

/// Whether a VM has used its memory since it was last reset.
pub fn has_used_memory(vm: &vm::Vm) -> bool {
    vm.arch.lives.load(Ordering::Relaxed) == LIVES[vm.number].load(Ordering::Relaxed)
}

/// Number of times that a VM used its memory since it was created.
pub fn memory_uses(vm: usize) -> u64 {
    USES[vm].load(Ordering::Relaxed)
}

/// The VMs, whose numbers are those of the configuration's.
pub fn vms() -> impl Iterator<Item = &'static vm::Vm> {
    (0..VCPUS.len()).filter_map(vm::get)
}

fn any_vcpu() -> &'static vm::Vcpu {
    let vcpus: Vec<_> = vms().flat_map(|vm| vm.vcpus.iter().copied()).collect();
    vcpus[random(vcpus.len() as u64) as usize]
}

/// Sends an interrupt to some vCPU.
pub fn interrupt() {
    let vcpu = any_vcpu();
    vcpu.arch.pending.store(true, Ordering::Relaxed);
    cpu::notify(vcpu);
}

/// Sends an interrupt to some vCPU, from a handler of the vCPU that runs on `cpu` and continues.
fn interrupt_beside(cpu: &mut Cpu) {
    let vcpu = any_vcpu();
    vcpu.arch.pending.store(true, Ordering::Relaxed);
    if !cpu::kick_if_running(vcpu) {
        let before = cpu.woken;
        cpu::wake_beside(cpu, vcpu);
        count(&WOKEN_BESIDE, 1);
        if cpu.woken.is_some() && cpu.woken != before {
            assert_eq!(cpu.woken.map(|(woken, _)| woken), Some(vcpu.id));
            assert!(cpu.slice_end.is_some() && cpu.waiting_trapped, "nothing ends the turn of the vCPU that continues");
            count(&WOKEN_LATER, 1);
        }
    }
}

/// The guest uses its memory: a reset restores the file, and leaves the page behind it.
fn use_memory(vm: &vm::Vm) {
    let at = |gpa| {
        // Accesses by Stile may precede.
        if random(2) == 0 {
            vm.fill_page(gpa);
        }
        while !vm.arch.can_write(gpa) {
            assert!(vm.handle_write_fault(gpa) || vm.touch(gpa));
        }
        assert!(vm.is_mapped(gpa));
        let start = *vm.arch.mapped.lock().unwrap().get(&RAM_BASE).expect("the block of a page with contents is mapped");
        Arch::physical(start + (gpa - RAM_BASE)).cast::<[u8; 8]>()
    };
    let (file, rest) = (at(RAM_BASE), at(RAM_BASE + 4096));
    let life = vm.arch.lives.load(Ordering::Relaxed);
    let expected = if LIVES[vm.number].swap(life, Ordering::Relaxed) == life { b"written\0" } else { b"a guest\0" };
    let uses = USES[vm.number].fetch_add(1, Ordering::Relaxed);
    // SAFETY: both are in a block of the VM's RAM, mapped just before; only this thread runs the VM, and Stile refers to none of it.
    unsafe {
        assert_eq!(&file.read(), expected);
        assert_eq!(rest.read(), uses.to_le_bytes());
        file.write(*b"written\0");
        rest.write((uses + 1).to_le_bytes());
    }
}

/// The guest accesses its devices: each keeps what its own VM wrote, and only accesses of the right width reach one.
fn use_devices(cpu: &mut Cpu) {
    let buses = &cpu.vcpu().vm().devices.buses;
    let value = cpu.vcpu().vm().number as u64 + 1;
    // UARTIBRD, which holds 16 bits.
    let divisor = PL011_BASE + 0x24;
    let hit = buses.memory.find(divisor, 4).expect("the UART is on the memory bus");
    assert_eq!((hit.device, hit.offset), (Device::Uart, 0x24));
    assert!(buses.memory.find(divisor, 1).is_none() && buses.memory.find(divisor, 8).is_none());
    assert!(hit.device.write(cpu, hit.offset, 4, value).is_none());
    assert_eq!(hit.device.read(cpu, hit.offset, 4), value);
    // PL031's match register, which the fake back end has at ports.
    let hit = buses.port(0x74, 4).expect("the clock is on the port bus");
    assert_eq!((hit.device, hit.offset), (Device::Clock, 4));
    assert!(hit.device.write(cpu, hit.offset, 4, value).is_none());
    assert_eq!(hit.device.read(cpu, hit.offset, 4), value);
    assert!(buses.memory.find(0x74, 4).is_none() && buses.port(0x78, 4).is_none());
}

/// The vCPU that runs on `cpu` computes, accesses memory and devices, and exits.
pub fn exit(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    assert_eq!(vcpu.runs_on.load(Ordering::Relaxed), cpu.index as u32);
    assert_eq!(*vcpu.arch.loaded.lock().unwrap(), Some(cpu.index));
    assert!(!is_paused(vcpu.vm().number), "a vCPU of a paused VM runs");
    assert_eq!(cpu.register & 0xff, RAM_BASE & 0xff, "the register of no vCPU");
    cpu.register += 0x100;
    fake::pass(random(50_000));
    use_memory(vcpu.vm());
    use_devices(cpu);
    cpu.exit();
    if random(4) == 0 {
        interrupt_beside(cpu);
    }
    cpu.leave = reason_to_leave(vcpu);
    let row = RowId::masked(0);
    if cpu.traced.get() {
        trace::trace_leave(cpu, Outcome::leave(row));
    }
    cpu::leave(cpu, row);
}

/// Handles an exit in a way that chance chooses, and returns the reason for which its vCPU is left.
fn reason_to_leave(vcpu: &'static vm::Vcpu) -> Leave {
    let vm = vcpu.vm();
    let loaded = vm.vcpus.iter().filter(|vcpu| vcpu.arch.loaded.lock().unwrap().is_some()).count();
    match random(40) {
        0..12 => return Leave::Wait,
        12..20 => return Leave::Yield,
        20..30 => return Leave::Timer,
        30 if loaded > 1 => return Leave::Off,
        31 => power::end(vm, End::Reset),
        32..34 => {
            let other = vm.vcpus[random(vm.vcpus.len() as u64) as usize];
            let is_off = cpu::SCHEDULE.state(other.id) == stile_sched::State::Off;
            if is_off && !vm.power.is_ending() {
                fake::turn_on(other);
            }
        }
        _ => interrupt(),
    }
    Leave::Resched
}
