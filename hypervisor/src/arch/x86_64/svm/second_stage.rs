//! Format of second stages, and invalidation of their translations.

use stile_paging::table::{EptPermissions, Npt};

use super::{extension, local, state};

/// Format of the tables.
pub type Format = Npt;
/// Permissions of a guest's pages.
pub type Permissions = EptPermissions;

/// The format, with the largest pages that the CPUs have.
pub fn format() -> Format {
    Npt { largest: extension::features().largest_page }
}

/// Invalidates this CPU's translations: of the loaded vCPU at its next entry, of others at their next load.
pub fn invalidate(_root: u64) {
    local::note_stale();
    state::invalidate_translations();
}
