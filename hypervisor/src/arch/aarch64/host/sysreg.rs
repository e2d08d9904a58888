//! Access to system registers by name, for those that the `aarch64-cpu` crate does not know (the `_EL12` names, `ICH_*`, ...) or
//! where a plain value is moved. Names that an assembler may not know are written `S<op0>_<op1>_C<n>_C<m>_<op2>`.

/// Reads a system register.
macro_rules! read_sysreg {
    ($name:expr) => {{
        let value: u64;
        // SAFETY: reading a register that this CPU has (the caller's business) changes no memory.
        unsafe { core::arch::asm!(concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
        value
    }};
}

/// Writes a system register. What controls EL2's own translation is written in `boot.S` and `mmu` alone; all others change
/// what a guest sees or when EL2 is entered, not the memory that Rust knows of.
macro_rules! write_sysreg {
    ($name:expr, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: see above.
        unsafe { core::arch::asm!(concat!("msr ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
    }};
}

/// Makes the effects of the register writes before it visible to what comes after it (Arm ARM, Context synchronization event).
#[inline(always)]
pub fn isb() {
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) };
}

/// Waits until the memory accesses, cache and TLB maintenance before it are complete for all CPUs.
#[inline(always)]
pub fn dsb_ish() {
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
}

pub(crate) use {read_sysreg, write_sysreg};
