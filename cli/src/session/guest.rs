//! VMs, as the user sees them.

use crate::initramfs::Marks;

/// What the small system of [`crate::initramfs`] in a VM does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// Its marks.
    pub marks: Marks,
    /// Whether it runs a command, whose output alone is shown.
    pub command: bool,
    /// The terminal's columns and rows that it was told; 0 if they were not known.
    pub size: (u16, u16),
}

/// A VM, as the user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// If Stile made its root file system.
    pub system: Option<System>,
    /// If it is a Stile: the VMs in that, at least one.
    pub inner: Vec<Guest>,
}
