//! Access to system registers by name, and instructions without operands.

/// Reads a system register: `mrs!("cntfrq_el0")`.
macro_rules! mrs {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reads of the registers that the probe names have no effect on memory.
        unsafe { core::arch::asm!(concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
        value
    }};
}

/// Writes a system register, and makes the write take effect: `msr!("daifset", value)`.
macro_rules! msr {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: the probe is alone on its machine, and no Rust code relies on the registers that it writes.
        unsafe { core::arch::asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags)) };
    }};
}

/// Executes an instruction without operands, which may change memory.
macro_rules! instruction {
    ($text:literal) => {{
        // SAFETY: barriers, hints and the interrupt mask change no state that Rust code relies on.
        unsafe { core::arch::asm!($text, options(nostack, preserves_flags)) }
    }};
}

pub(crate) use {instruction, mrs, msr};
