//! Exit codes by which handlers of both back ends name a crash.

use stile_svm::exit;

/// Nested page fault.
pub const EPT_VIOLATION: usize = exit::NPF as usize;
/// Task switch.
pub const TASK_SWITCH: u64 = exit::TASK_SWITCH;
