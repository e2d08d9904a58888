//! Access to system registers by name.

/// Reads a system register: `mrs!("CNTFRQ_EL0")`. Use `S3_0_C12_C12_0` names for registers unknown to the
/// assembler.
#[macro_export]
macro_rules! mrs {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reads of the registers used by guests have no effect on memory; an undefined one is handled
        // by the exception handler.
        unsafe {
            core::arch::asm!(concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags));
        }
        value
    }};
}

/// Writes a system register and makes the write take effect (ISB): `msr!("VBAR_EL1", value)`.
#[macro_export]
macro_rules! msr {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: a guest is alone on its machine and writes only registers that no Rust code relies on, or
        // values that preserve what Rust relies on (stack, translation).
        unsafe {
            core::arch::asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags));
        }
    }};
}

/// Executes an instruction without operands, such as a barrier or `wfi`: `barrier!("dsb sy")`.
#[macro_export]
macro_rules! instruction {
    ($text:literal) => {{
        // SAFETY: barriers, hints and TLB maintenance change no state that Rust code relies on.
        unsafe { core::arch::asm!($text, options(nostack, preserves_flags)) }
    }};
}
