//! VMs, as the user sees them.

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::initramfs::Marks;

/// The busybox system of [`crate::initramfs`] in a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// Its marks.
    pub marks: Marks,
    /// Whether it runs a command, whose output alone is shown.
    pub command: bool,
    /// The terminal size in columns and rows passed to it; 0 if unknown.
    pub size: (u16, u16),
}

/// A VM, as the user sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// If Stile made its root file system.
    pub system: Option<System>,
    /// Limits of its exits.
    #[serde(default)]
    pub budget: Budget,
    /// If it is a Stile: its VMs, at least one.
    pub inner: Vec<Guest>,
}
