//! Access to system registers by name. Crate `stile-sysreg` encodes names that the assembler may not know
//! ([`stile_sysreg::operand`]).

/// Reads a system register by its name, or by a string that an assembler understands.
macro_rules! read_sysreg {
    ($name:ident) => {
        $crate::arch::aarch64::host::sysreg::read_sysreg!(stile_sysreg::operand!($name))
    };
    ($name:expr) => {{
        let value: u64;
        // SAFETY: reading a register that this CPU has, which the caller ensures, does not affect memory.
        unsafe { core::arch::asm!(concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
        value
    }};
}

/// Writes a system register. Registers that control EL2's own translation are written only in `boot.S` and `mmu`;
/// others affect what guests see, or when EL2 is entered, but not Rust's memory.
macro_rules! write_sysreg {
    ($name:ident, $value:expr) => {
        $crate::arch::aarch64::host::sysreg::write_sysreg!(stile_sysreg::operand!($name), $value)
    };
    ($name:expr, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: as stated above, no write here affects Rust's memory.
        unsafe { core::arch::asm!(concat!("msr ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
    }};
}

/// Makes the effects of earlier register writes visible to later instructions (Arm ARM, Context synchronization
/// event).
#[inline(always)]
pub fn isb() {
    // SAFETY: a barrier orders accesses, and changes neither memory nor a register that the compiler uses.
    unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) };
}

/// Waits for completion of earlier memory accesses and of cache and TLB maintenance on all CPUs.
#[inline(always)]
pub fn dsb_ish() {
    // SAFETY: a barrier orders accesses, and changes neither memory nor a register that the compiler uses.
    unsafe { core::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
}

pub(crate) use {read_sysreg, write_sysreg};
