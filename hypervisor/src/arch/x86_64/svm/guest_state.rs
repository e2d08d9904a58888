//! Guest-state area of a vCPU in snapshots, which are refused with AMD-V (`snapshot.rs`).

use stile_snapshot::x86_64::FIELDS;

/// Why VMs have no snapshots.
pub const OBSTACLE: Option<&str> = Some("a VM can't be saved or restored with AMD-V yet: stop it instead");

/// No values.
#[derive(Clone, Copy)]
pub struct GuestState;

impl GuestState {
    /// Not called: there are no snapshots.
    pub fn read(_at: u64) -> GuestState {
        GuestState
    }

    /// The values.
    pub fn words(&self) -> &[u64; FIELDS] {
        &[0; FIELDS]
    }

    /// Writes nothing.
    pub fn write(&self) {}

    /// No state can be restored.
    pub fn allowed(_words: &[u64; FIELDS]) -> Option<GuestState> {
        None
    }
}
