//! x86-64 in VMX root operation.

mod boot;
mod emulation;
mod exit;
mod handler;
mod host;
mod interrupts;
pub mod panic;
mod vcpu;
mod vm;

use core::ops::Range;

use stile_blob::Mode;

pub use crate::address_space::physical;
use crate::device::Line;

use host::speculation;
use interrupts::{deadline, delivery, events};
use vm::protected;

pub use boot::join;
pub use emulation::devices;
pub use exit::enter;
pub use handler::idle_interrupt;
pub use host::cpu::{Cpu, Local};
pub use host::firmware::power_off;
pub use host::speculation::apply as apply_mitigations;
pub use host::{mmu, timer, uart};
pub use interrupts::deadline::set_own as set_deadline;
pub use interrupts::delivery::take as take_interrupts;
pub use vm::{Vcpu, Vm};

/// The models of the devices that the guests of this architecture have.
pub mod models {
    pub use super::emulation::clock::Clock;
    pub use stile_device::uart16550::Uart16550 as Uart;
    pub use stile_device::uart16550::offset::DATA as UART_DATA;
}

/// Where a VM's `size` bytes of RAM are: around its devices.
pub fn ram(_base: u64, size: u64) -> [Range<u64>; 2] {
    stile_board::pc::ram(size)
}

/// Whether a VM's first vCPU can start in this state.
pub fn can_start(mode: Mode) -> bool {
    matches!(mode, Mode::Protected | Mode::Long { .. })
}

/// How Stile runs on this CPU, for the operator.
pub fn level() -> stile_wire::Level {
    stile_wire::Level::Vmx
}

/// Sleeps until an interrupt comes, also one that came before. It is noted in the CPU's block, for [`idle_interrupt`].
pub fn wait_for_interrupt() {
    // SAFETY: Stile's interrupts only leave a note. STI lets none come before HLT has begun.
    unsafe { core::arch::asm!("sti", "hlt", "cli", options(nostack)) };
}

/// Takes interrupts that are pending, while Stile works for a vCPU that is loaded.
pub fn poll_interrupts(cpu: &mut Cpu) {
    // SAFETY: as above. STI lets none come before the NOP is done.
    unsafe { core::arch::asm!("sti", "nop", "cli", options(nostack)) };
    idle_interrupt(cpu);
}

/// Chooses whether the vCPU that is loaded exits as it waits: in a loop of PAUSE. By HLT it always does, for one that does not exit is woken only by
/// what the processor itself delivers to the guest.
pub fn trap_waiting(cpu: &Cpu, on: bool) {
    // SAFETY: the vCPU is loaded here.
    unsafe { cpu.vcpu().arch.context() }.pauses.trap(on);
}

/// Whether an interrupt is pending that would end the loaded vCPU's wait.
pub fn interrupt_pending(cpu: &mut Cpu) -> bool {
    delivery::is_pending(cpu)
}

/// Loads a vCPU, of which nothing is on this CPU. `turns`: another one was put for it.
pub fn load(cpu: &mut Cpu, vcpu: &'static crate::vm::Vcpu, _turns: bool) {
    // SAFETY: the scheduler gave the vCPU to this CPU, and to no other.
    let context = unsafe { vcpu.arch.context() };
    speculation::switch_vm(cpu.index, vcpu.vm().number);
    cpu.open_vm(&vcpu.vm().arch);
    let fresh = context.load(cpu, &vcpu.vm().arch.place);
    if let Some(protected) = &vcpu.vm().arch.protected {
        protected.load(cpu);
    }
    cpu.frame.registers = context.general;
    delivery::load(cpu, vcpu, fresh);
}

/// Takes a vCPU off this CPU. If it sleeps, returns when it must be woken.
pub fn put(cpu: &mut Cpu, vcpu: &'static crate::vm::Vcpu, sleeps: bool) -> Option<u64> {
    // SAFETY: the vCPU is loaded here; the scheduler's lock keeps others from loading it until this is done.
    let context = unsafe { vcpu.arch.context() };
    context.general = cpu.frame.registers;
    let wake = delivery::put(cpu, vcpu);
    context.put(cpu);
    if let Some(protected) = &vcpu.vm().arch.protected {
        protected.put(cpu);
    }
    wake.filter(|_| sleeps)
}

/// Takes a vCPU that is off now from this CPU, and forgets its registers. The scheduler's lock is held.
pub fn power_down(cpu: &mut Cpu, vcpu: &'static crate::vm::Vcpu) {
    cpu.launched = 0;
    deadline::release(cpu, vcpu);
    // SAFETY: as in `put`.
    unsafe { vcpu.arch.context() }.drop_vmcs();
    if let Some(protected) = &vcpu.vm().arch.protected {
        protected.put(cpu);
    }
}

/// Moves an interrupt line of a VM's device.
pub fn set_line(vm: &crate::vm::Vm, line: Line, high: bool) {
    let line = match line {
        Line::Uart => stile_board::pc::COM1_INPUT,
        Line::Clock => stile_board::pc::CLOCK_INPUT,
    };
    if let Some(vm) = crate::vm::get(vm.number) {
        devices::set_line(vm, line as u8, high);
    }
}

/// A vCPU was turned off by INIT. Returns how many are on. The scheduler's lock is held.
pub fn record_off(vm: &crate::vm::Vm, _vcpu: usize) -> usize {
    vm.vcpus.iter().filter(|vcpu| vcpu.arch.events.is_on()).count()
}

/// What became of decoded instructions.
pub fn decoded(vm: &crate::vm::Vm) -> stile_wire::Decoded {
    let mut all = stile_wire::Decoded { vm: vm.number as u8, ..stile_wire::Decoded::default() };
    let of_vcpus = vm.vcpus.iter().map(|vcpu| vcpu.arch.decoded.counts());
    for counts in of_vcpus.chain(vm.arch.protected.as_ref().map(protected::Protected::counts)) {
        all.hits += counts.hits;
        all.misses += counts.misses;
        all.evictions += counts.evictions;
        all.mismatches += counts.mismatches;
        all.dropped += counts.dropped;
    }
    all
}

/// A vCPU that was turned off may be turned on again.
pub fn powered_off(vm: &'static crate::vm::Vm, vcpu: usize) {
    if let Some(vcpu) = vm.vcpus.get(vcpu) {
        events::turned_off(vcpu);
    }
}

/// Bytes of RAM that one exit zeroes: eight at each step of REP STOSQ.
pub const ZEROED_AT_ONCE: u64 = 1 << 20;
/// Bytes of RAM that one exit copies, likewise.
pub const COPIED_AT_ONCE: u64 = 1 << 20;

/// Zeroes memory.
///
/// # Safety
/// The caller has these bytes of the direct map for itself.
pub unsafe fn zero(memory: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { memory.write_bytes(0, length) };
}

/// Copies a file's bytes, data or code.
///
/// # Safety
/// The caller has `to`, `length` bytes of the direct map, for itself; `from` is readable, and elsewhere.
pub unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, length) };
}
