//! The guests' machine.

use core::ops::Range;

use stile_blob::Mode;
use stile_wire::Decoded;

use crate::device::Line;
use crate::vm::Vm;

/// A VM's machine: location of RAM, initial state, and effects of devices and vCPUs. Its devices are the items of the
/// modules `models` and `devices` (docs/devices.md).
pub trait Platform {
    /// Ranges of a VM's RAM, including disks in memory and memory for firmware, in ascending order; ranges may be empty.
    fn ram(config: &stile_blob::Vm<'_>) -> [Range<u64>; 2];

    /// Whether a VM's first vCPU can start in this mode.
    fn can_start(mode: Mode) -> bool;

    /// Sets an interrupt line of a VM's device. The device's lock is held, so that levels arrive in order.
    fn set_line(vm: &Vm, line: Line, high: bool);

    /// Records that a vCPU has powered itself off: others may power it on again. Returns the number of vCPUs that are
    /// on. The schedule is locked.
    fn record_off(vm: &Vm, vcpu: usize) -> usize;

    /// Completes [`Platform::record_off`] with the schedule unlocked; the vCPU may be on again already.
    fn powered_off(vm: &'static Vm, vcpu: usize);

    /// Sets back by `ticks` the clocks of a paused VM that a pause stops (docs/operate.md). None of its vCPUs is
    /// loaded, and its power state is locked.
    fn hold_time(vm: &Vm, ticks: u64);

    /// Invalidates translations of unmapped RAM of a paused VM on each CPU that loads one of its vCPUs from here on, and
    /// drops all state that relies on permissions of its pages. None of its vCPUs is loaded, and its power state is locked.
    fn forget_translations(vm: &Vm);

    /// Looks at clients whose loads wait for their servers, a bounded part of them, when the alarm for them expires.
    fn look_at_waits(_now: u64) {}

    /// Presses a VM's power button. Returns false if it has none, or its guest does not handle it.
    fn press_power_button(vm: &'static Vm) -> bool;

    /// Counters of the decode cache; zeros where the processor decodes.
    fn decoded(vm: &Vm) -> Decoded;
}
