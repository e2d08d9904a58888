//! Fields of a CPU's block for AMD-V.

use core::cell::{Cell, UnsafeCell};

use stile_svm::{Asids, VMCB_SIZE};

/// A VMCB.
#[repr(C, align(4096))]
pub struct Page(UnsafeCell<[u8; VMCB_SIZE]>);

// SAFETY: no processor enters with it: its contents do not matter, and no reference to them exists.
unsafe impl Sync for Page {}

/// The VMCB of CPUs on which none was loaded yet: what is written there has no effect.
pub static NONE_LOADED: Page = Page(UnsafeCell::new([0; VMCB_SIZE]));

/// State of a CPU. All zero before [`turn_on`](super::extension::turn_on).
#[repr(C)]
pub struct OfCpu {
    /// Physical address of the loaded vCPU's VMCB.
    pub loaded: Cell<u64>,
    /// Physical address of the VMCB from which VMLOAD loads Stile's own state at exits.
    pub own: Cell<u64>,
    /// Address-space identifiers.
    pub asids: Cell<Option<Asids>>,
}
