//! The lead of a real-time clock whose VM moved to a machine where the time of day is earlier. It is kept apart from the
//! offset that the guest set: when the VM moves back, it is as small as before.

/// Returns the lead at `now` of a clock that had `lead` when it was exported, at `exported`: the least with which the
/// clock does not go back. Times are in seconds. Saturates, as the values are untrusted.
pub const fn restored(lead: u64, now: u64, exported: u64) -> u64 {
    exported.saturating_add(lead).saturating_sub(now)
}
