//! Hyper-V's VP assist page: only a nested VM has it.

/// None.
pub struct AssistPage;

impl AssistPage {
    /// None.
    pub const fn new() -> AssistPage {
        AssistPage
    }

    /// Nothing to reset.
    pub fn reset(&self) {}
}
