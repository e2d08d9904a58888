//! Format of second stages, and invalidation of their translations.

use stile_paging::table::{Ept, EptPermissions};

use crate::arch::x86_64::vmx::extension;

/// Format of the tables.
pub type Format = Ept;
/// Permissions of a guest's pages.
pub type Permissions = EptPermissions;

/// The format, with the largest pages that the CPUs have.
pub fn format() -> Format {
    Ept { largest: extension::features().largest_page }
}

/// Invalidates this CPU's translations through a second stage ([`super::place::Place::second_stage`]).
pub fn invalidate(pointer: u64) {
    extension::invalidate_ept(pointer);
}
