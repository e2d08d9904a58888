//! Shutdown of Stile after its last VM has ended.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use stile_wire::Event;

use super::power_state::State;
use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::{console, keep_figures, report, screen};

/// Number of VMs being retired ([`super::retire`]), during which the machine does not end.
pub static LEAVING: AtomicUsize = AtomicUsize::new(0);

/// Shuts Stile down if all VMs are off and none is being retired.
pub fn if_all_off() {
    if LEAVING.load(Ordering::Acquire) == 0 && super::all().all(|vm| *vm.power.state.lock() == State::Off) {
        shut_down();
    }
}

/// Shuts Stile down: the last VM has ended.
fn shut_down() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if ONCE.swap(true, Ordering::Relaxed) {
        return;
    }
    console::flush();
    report::send_if_wanted();
    let failed = super::all().any(|vm| vm.power.failed.load(Ordering::Relaxed));
    keep_figures::keep(!failed);
    console::event(&Event::End { status: u8::from(failed) });
    console::flush();
    if screen::shows_consoles() { screen::end_machine() } else { Arch::power_off() }
}
