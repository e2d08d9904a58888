//! Resets of the machine while an L2 is loaded.

use core::sync::atomic::{AtomicU64, Ordering};

use pc::console::{self, println};
use pc::machine::{self, out8};

use crate::second;
use crate::test::{Outcome, check};
use crate::vmcs::{code, enable_ept, fresh, run};

/// The number of resets, in memory that a reset preserves.
const PLACE: u64 = 40 << 20;
/// Marks the number in its upper half.
const MARK: u64 = 0x5354_494c << 32;

/// The keyboard controller's command that resets the machine.
const KEYBOARD: u16 = 0x64;
const RESET: u8 = 0xfe;

/// The first time, L2 resets the machine, at a port that is not intercepted; the second time, L1 does while it has a VMCS that is launched.
/// The second processor is in an L2 meanwhile.
/// Returns the third time.
pub fn twice(enter: impl Fn() -> Outcome) -> Outcome {
    // SAFETY: an aligned word of RAM that nothing else uses, also after a reset.
    let place = unsafe { AtomicU64::from_ptr(PLACE as *mut u64) };
    let resets = place.load(Ordering::Relaxed).checked_sub(MARK).filter(|&resets| resets < 3).unwrap_or(0);
    println!("boot {}", resets + 1);
    console::drain();
    place.store(MARK + resets + 1, Ordering::Relaxed);
    if resets == 2 {
        place.store(0, Ordering::Relaxed);
        return Outcome::Pass;
    }
    if let Outcome::Fail(why) = second::leave_in_l2(resets == 0) {
        return Outcome::Fail(why);
    }
    if let Outcome::Fail(why) = enter() {
        return Outcome::Fail(why);
    }
    fresh(if resets == 0 { code!("mov al, 0xfe", "out 0x64, al", "2: jmp 2b") } else { code!("nop") });
    check!(enable_ept(), "EPT");
    check!(run(&mut [0; 8], false) == crate::exits::VMCALL, "the exit");
    // SAFETY: the 8042 resets the machine, which this test expects: nothing after it is needed.
    unsafe { out8(KEYBOARD, RESET) };
    machine::off()
}
