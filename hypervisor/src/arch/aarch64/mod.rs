//! AArch64 at EL2, with VHE where the CPU has it.

mod boot;
mod emulation;
mod exit;
mod handler;
mod host;
mod interrupts;
mod nested;
pub mod panic;
mod vcpu;
mod vm;

use core::ops::Range;

use stile_board::intid;

pub use crate::address_space::physical;
use crate::device::Line;
use host::bulk::clean;
use host::features;
use host::sysreg::isb;
use interrupts::{TIMER_ENABLE, delivery};
use vcpu::registers::El1;
use vcpu::{context, traps};

pub use boot::join;
pub use emulation::devices;
pub use exit::enter;
pub use handler::idle_interrupt;
pub use host::bulk::{COPIED_AT_ONCE, ZEROED_AT_ONCE, copy, zero};
pub use host::cpu::{Cpu, Local};
pub use host::firmware::power_off;
pub use host::speculation::apply as apply_mitigations;
pub use host::{mmu, timer, uart};
pub use vm::{Vcpu, Vm};

/// The models of the devices that the guests of this architecture have.
pub mod models {
    pub use stile_device::pl011::Pl011 as Uart;
    pub use stile_device::pl011::offset::DR as UART_DATA;
    pub use stile_device::pl031::Pl031 as Clock;
}

/// Where a VM's `size` bytes of RAM are, of which the configuration says the first address; the second range may be empty.
pub fn ram(base: u64, size: u64) -> [Range<u64>; 2] {
    [base..base + size, base + size..base + size]
}

/// Whether a VM's first vCPU can start in this state.
pub fn can_start(mode: stile_blob::Mode) -> bool {
    mode == stile_blob::Mode::Reset
}

/// How Stile runs on this CPU, for the operator.
pub fn level() -> stile_wire::Level {
    if features::get().vhe { stile_wire::Level::Vhe } else { stile_wire::Level::Nvhe }
}

/// Sleeps until an interrupt is pending, masked or not.
pub fn wait_for_interrupt() {
    // A kick that was sent just now is on its way.
    isb();
    // SAFETY: what was written before must be seen before the wait; the wait itself changes nothing.
    unsafe { core::arch::asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
}

/// Takes an interrupt, if one is pending, while Stile works for a vCPU that is loaded.
pub fn poll_interrupts(cpu: &mut Cpu) {
    idle_interrupt(cpu);
}

/// Sets the traps of WFI and WFE for the vCPU that is loaded.
pub fn trap_waiting(cpu: &Cpu, on: bool) {
    if !nested::trap_waiting(cpu, on) {
        traps::set_waiting_traps(on);
    }
}

/// Gives the loaded vCPU, which is to be entered, what waits for it. It never waits on: WFI may end for nothing.
#[inline(always)]
pub fn take_interrupts(cpu: &mut Cpu) -> bool {
    nested::resume(cpu);
    true
}

/// Whether an interrupt is pending that would end the loaded vCPU's wait.
pub fn interrupt_pending(cpu: &mut Cpu) -> bool {
    delivery::pull(cpu);
    interrupts::is_pending(cpu, cpu.vcpu())
}

/// Loads a vCPU, of which nothing is on this CPU. `turns`: another one was put for it.
pub fn load(cpu: &mut Cpu, vcpu: &'static crate::vm::Vcpu, switched: bool) {
    let vm = vcpu.vm();
    cpu.open_vm(&vm.arch);
    vm.arch.load_second_stage(vm.number, vcpu.arch.index, cpu.index);
    // SAFETY: the scheduler gave the vCPU to this CPU, and to no other.
    let context = unsafe { vcpu.arch.context() };
    context.load(switched, &mut cpu.fp_trapped);
    context::copy_general_registers(&context.general, &mut cpu.frame.x);
    // The list registers that come next are of this interface, and its lines those of these timers.
    isb();
    interrupts::load(cpu, vcpu);
    nested::load_second_stage(cpu, vcpu);
}

/// Sets this CPU's deadline for the scheduler, or none.
#[inline(always)]
pub fn set_deadline(_cpu: &mut Cpu, deadline: Option<u64>) {
    timer::set_deadline(deadline);
}

/// Takes a vCPU off this CPU. If it sleeps, returns when it must be woken: when a timer of its will ring; now, if an interrupt is pending.
pub fn put(cpu: &mut Cpu, vcpu: &'static crate::vm::Vcpu, sleeps: bool) -> Option<u64> {
    let pending = interrupts::put(cpu, vcpu);
    // SAFETY: the vCPU is loaded here; the scheduler's lock keeps others from loading it until this is done.
    let context = unsafe { vcpu.arch.context() };
    context::copy_general_registers(&cpu.frame.x, &mut context.general);
    context.put();
    interrupts::stop_timers(context.el1[El1::CntvCtl as usize] | context.el1[El1::CntpCtl as usize]);
    if !sleeps {
        return None;
    }
    if pending {
        return Some(0);
    }
    // ENABLE without IMASK.
    let deadline = |control: El1, compare: El1| (context.el1[control as usize] & 0b11 == 0b01).then_some(context.el1[compare as usize]);
    let virt = deadline(El1::CntvCtl, El1::CntvCval).map(|compare| match nested::timer_offset(vcpu) {
        0 => compare,
        offset => timer::virtual_deadline(compare, offset),
    });
    let deadlines = [virt, deadline(El1::CntpCtl, El1::CntpCval), nested::deadline(vcpu)];
    deadlines.into_iter().flatten().min()
}

/// Takes the interrupts of a vCPU that is off now from this CPU, and forgets its registers. The scheduler's lock is held.
pub fn power_down(cpu: &mut Cpu, vcpu: &crate::vm::Vcpu) {
    // What was pending for it stays where a later start finds it.
    let _ = interrupts::put(cpu, vcpu);
    interrupts::stop_timers(TIMER_ENABLE);
    // SAFETY: the vCPU is still this CPU's.
    unsafe { vcpu.arch.context() }.abandon();
}

/// Moves an interrupt line of a VM's device.
pub fn set_line(vm: &crate::vm::Vm, line: Line, high: bool) {
    let intid = match line {
        Line::Uart => intid::PL011,
        Line::Clock => intid::PL031,
    };
    let kick = vm.arch.distributor.lock().set_level(intid, high);
    delivery::deliver(vm, kick);
}

/// A vCPU has turned itself off: others may turn it on again. Returns how many are on. The scheduler's lock is held.
pub fn record_off(vm: &crate::vm::Vm, vcpu: usize) -> usize {
    vm.arch.power.lock().cpu_off(vcpu)
}

/// What became of decoded instructions: the processor decodes those that Stile does the work of.
pub fn decoded(vm: &crate::vm::Vm) -> stile_wire::Decoded {
    stile_wire::Decoded { vm: vm.number as u8, ..stile_wire::Decoded::default() }
}

/// Routes the 1-of-N interrupts of a vCPU that has turned itself off to others, unless it was turned on again since [`record_off`].
pub fn powered_off(vm: &'static crate::vm::Vm, vcpu: usize) {
    let power = vm.arch.power.lock();
    if !power.is_off(vcpu) {
        return;
    }
    let kick = vm.arch.distributor.lock().set_online(vcpu, false);
    drop(power);
    delivery::deliver(vm, kick);
}
