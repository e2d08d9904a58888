//! Copy of the general registers.

/// Copies x0 to x30.
pub fn copy_general_registers(from: &[u64; 31], to: &mut [u64; 31]) {
    // SAFETY: both arrays have 31 words, as their types state.
    unsafe { move_31(from, to) };
}

unsafe extern "C" {
    fn move_31(from: *const [u64; 31], to: *mut [u64; 31]);
}

// In assembly: without vector registers the compiler would produce a loop.
core::arch::global_asm!(
    ".macro move_pairs a",
    "    ldp x2, x3, [x0, #\\a]",
    "    ldp x4, x5, [x0, #\\a + 16]",
    "    ldp x6, x7, [x0, #\\a + 32]",
    "    ldp x8, x9, [x0, #\\a + 48]",
    "    ldp x10, x11, [x0, #\\a + 64]",
    "    stp x2, x3, [x1, #\\a]",
    "    stp x4, x5, [x1, #\\a + 16]",
    "    stp x6, x7, [x1, #\\a + 32]",
    "    stp x8, x9, [x1, #\\a + 48]",
    "    stp x10, x11, [x1, #\\a + 64]",
    ".endm",
    ".global move_31",
    "move_31:",
    "    move_pairs 0",
    "    move_pairs 80",
    "    move_pairs 160",
    "    ldr x2, [x0, #240]",
    "    str x2, [x1, #240]",
    "    ret",
);
