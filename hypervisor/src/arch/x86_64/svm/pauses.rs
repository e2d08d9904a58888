//! PAUSE intercepts with the filter for loops ("Pause Intercept Filtering"): loops exit while other vCPUs want the CPU,
//! if the CPU has the filter.

use stile_svm::Field;
use stile_svm::intercept::word_3;

use super::extension;
use super::state;

/// Maximum distance of PAUSEs in the same loop, in ticks.
const GAP: u64 = 128;
/// PAUSEs of a loop until it exits, which take longer than locks are usually held.
const COUNT: u64 = 3000;

/// Whether a vCPU's PAUSE loops exit, by its VMCB.
pub struct Pauses(bool);

impl Pauses {
    /// Selects for a VMCB that is being initialized.
    pub fn reset(&mut self, on: bool) {
        state::write(Field::PAUSE_GAP, GAP);
        state::write(Field::PAUSE_COUNT, COUNT);
        self.0 = false;
        self.trap(on);
    }

    /// Selects for the loaded vCPU.
    pub fn trap(&mut self, on: bool) {
        if self.0 != on && extension::features().pause_loops {
            self.0 = on;
            state::intercept(Field::INTERCEPTS_3, word_3::PAUSE, on);
        }
    }
}
