//! Access to system registers by name. What an assembler may not know crate `stile-sysreg` does ([`stile_sysreg::operand`]).

/// Reads a system register: by its name, or by a string that an assembler understands.
macro_rules! read_sysreg {
    ($name:ident) => {
        $crate::arch::aarch64::host::sysreg::read_sysreg!(stile_sysreg::operand!($name))
    };
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
    ($name:ident, $value:expr) => {
        $crate::arch::aarch64::host::sysreg::write_sysreg!(stile_sysreg::operand!($name), $value)
    };
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
