//! The machine that guests see.

use core::ops::Range;

use stile_blob::Mode;
use stile_wire::Decoded;

use crate::device::Line;
use crate::vm::Vm;

/// The machine that a VM is: where its RAM is, in what state it starts, and how its devices and vCPUs act on it. Its devices are the items of the modules `models` and `devices`
/// (docs/devices.md).
pub trait Platform {
    /// Where a VM's RAM is, with its memory for firmware, in the order of addresses; ranges may be empty.
    fn ram(config: &stile_blob::Vm<'_>) -> [Range<u64>; 2];

    /// Whether a VM's first vCPU can start in this state.
    fn can_start(mode: Mode) -> bool;

    /// Moves an interrupt line of one of a VM's devices. The device's lock is held, so that levels arrive in order.
    fn set_line(vm: &Vm, line: Line, high: bool);

    /// A vCPU has turned itself off: others may turn it on again. Returns how many are on. The schedule is locked.
    fn record_off(vm: &Vm, vcpu: usize) -> usize;

    /// Does what follows [`Platform::record_off`] and needs the schedule unlocked; the vCPU may be on again by now.
    fn powered_off(vm: &'static Vm, vcpu: usize);

    /// Lets the clocks of a paused VM that a pause stops (docs/operate.md) continue where they were so many ticks ago. None of its vCPUs is
    /// loaded, and the VM's power is locked.
    fn hold_time(vm: &Vm, ticks: u64);

    /// Presses a VM's power button. False: it has none, or its guest does not listen to it.
    fn press_power_button(vm: &'static Vm) -> bool;

    /// Counters of decoded instructions; zeros where the processor decodes.
    fn decoded(vm: &Vm) -> Decoded;
}
