//! Location of a word of a guest's memory, as table walks and the instruction decoder remember it.

/// Eight bytes of RAM, which stays in place while the VM exists.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct GuestWord(*const u64);

static ZEROS: u64 = 0;

impl GuestWord {
    /// A word that is always zero, of no guest.
    pub const ZEROS: GuestWord = GuestWord(&raw const ZEROS);

    /// The word at a location in the direct map.
    pub fn new(pointer: *const u64) -> GuestWord {
        GuestWord(pointer)
    }

    /// Its location.
    #[inline(always)]
    pub fn pointer(self) -> *const u64 {
        self.0
    }
}
