//! Access to system registers by name.

/// Reads a system register: `mrs!("CNTFRQ_EL0")`. Registers that the assembler may not know go by `S3_0_C12_C12_0` names.
#[macro_export]
macro_rules! mrs {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reads of the registers that guests name have no effect on memory; one that is undefined is taken
        // and reported by the exception handler.
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
        // SAFETY: a guest is alone on its machine and writes only registers that no Rust code relies on, or values that keep
        // what Rust relies on (stack, translation) as it is.
        unsafe {
            core::arch::asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags));
        }
    }};
}

/// Runs an instruction that takes no operand, such as a barrier or `wfi`: `barrier!("dsb sy")`.
#[macro_export]
macro_rules! instruction {
    ($text:literal) => {{
        // SAFETY: barriers, hints and TLB maintenance change no state that Rust code relies on.
        unsafe { core::arch::asm!($text, options(nostack, preserves_flags)) }
    }};
}
