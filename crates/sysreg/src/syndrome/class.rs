//! Exception classes.

use core::fmt;

/// An exception class, the `EC` field. Not an enumeration: a newer processor may report others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ec(u8);

macro_rules! classes {
    ($($(#[$doc:meta])* $value:literal $constant:ident $name:literal;)*) => {
        impl Ec {
            $($(#[$doc])* pub const $constant: Self = Self($value);)*

            /// Returns a short name; "reserved" for a class that the manual does not define.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $name,)*
                    _ => "reserved",
                }
            }
        }

        /// A class twice in the table would make an arm that can't be reached.
        #[cfg(test)]
        pub(super) const ALL: &[Ec] = &[$(Ec::$constant),*];
    };
}

classes! {
    /// Unknown reason, such as an undefined instruction.
    0x00 UNKNOWN "unknown reason";
    /// `WFI`, `WFE` and their timed forms.
    0x01 WFX "WFI or WFE";
    /// AArch32 `MCR` or `MRC` to coprocessor 15.
    0x03 CP15_MCR "MCR or MRC, cp15";
    /// AArch32 `MCRR` or `MRRC` to coprocessor 15.
    0x04 CP15_MCRR "MCRR or MRRC, cp15";
    /// AArch32 `MCR` or `MRC` to coprocessor 14.
    0x05 CP14_MCR "MCR or MRC, cp14";
    /// AArch32 `LDC` or `STC` to coprocessor 14.
    0x06 CP14_LDC "LDC or STC, cp14";
    /// SVE, SIMD or floating point, trapped by `CPTR_EL2.FPEN`.
    0x07 FP "SIMD or floating point";
    /// AArch32 `VMRS` from an ID register.
    0x08 VMRS "VMRS";
    /// Pointer authentication, trapped by `HCR_EL2.API`.
    0x09 PAUTH "pointer authentication";
    /// `LD64B`, `ST64B`, `ST64BV` and `ST64BV0`.
    0x0a LS64 "LD64B or ST64B";
    /// AArch32 `MRRC` to coprocessor 14.
    0x0c CP14_MRRC "MRRC, cp14";
    /// Branch target exception.
    0x0d BTI "branch target";
    /// Illegal execution state.
    0x0e ILLEGAL_STATE "illegal execution state";
    /// `SVC` in AArch32 state.
    0x11 SVC32 "SVC (AArch32)";
    /// `HVC` in AArch32 state.
    0x12 HVC32 "HVC (AArch32)";
    /// `SMC` in AArch32 state.
    0x13 SMC32 "SMC (AArch32)";
    /// `MSRR`, `MRRS` or a 128-bit system instruction.
    0x14 MSRR "128-bit system register";
    /// `SVC` in AArch64 state.
    0x15 SVC64 "SVC";
    /// `HVC` in AArch64 state.
    0x16 HVC64 "HVC";
    /// `SMC` in AArch64 state.
    0x17 SMC64 "SMC";
    /// `MSR`, `MRS` or a system instruction in AArch64 state.
    0x18 MSR "system register";
    /// SVE, trapped by `CPTR_EL2.ZEN`.
    0x19 SVE "SVE";
    /// `ERET`, trapped by `HCR_EL2.NV` or a fine-grained trap.
    0x1a ERET "ERET";
    /// `TSTART` or transactional memory.
    0x1b TSTART "TSTART";
    /// Failed pointer authentication.
    0x1c FPAC "pointer authentication failure";
    /// SME, trapped by `CPTR_EL2.SMEN`.
    0x1d SME "SME";
    /// Granule protection check.
    0x1e GRANULE_PROTECTION "granule protection check";
    /// Instruction abort from EL1 or EL0.
    0x20 INSTRUCTION_ABORT_LOWER "instruction abort";
    /// Instruction abort from the exception level that takes it.
    0x21 INSTRUCTION_ABORT_SAME "instruction abort, same level";
    /// Misaligned program counter.
    0x22 PC_ALIGNMENT "PC alignment";
    /// Data abort from EL1 or EL0.
    0x24 DATA_ABORT_LOWER "data abort";
    /// Data abort from the exception level that takes it.
    0x25 DATA_ABORT_SAME "data abort, same level";
    /// Misaligned stack pointer.
    0x26 SP_ALIGNMENT "SP alignment";
    /// Memory copy or set instruction on another processor's state.
    0x27 MOPS "memory copy or set";
    /// Floating-point exception in AArch32 state.
    0x28 FP_EXCEPTION32 "floating-point exception (AArch32)";
    /// Floating-point exception in AArch64 state.
    0x2c FP_EXCEPTION64 "floating-point exception";
    /// Guarded control stack.
    0x2d GCS "guarded control stack";
    /// SError interrupt.
    0x2f SERROR "SError";
    /// Breakpoint from EL1 or EL0.
    0x30 BREAKPOINT_LOWER "breakpoint";
    /// Breakpoint from the exception level that takes it.
    0x31 BREAKPOINT_SAME "breakpoint, same level";
    /// Software step from EL1 or EL0.
    0x32 STEP_LOWER "software step";
    /// Software step from the exception level that takes it.
    0x33 STEP_SAME "software step, same level";
    /// Watchpoint from EL1 or EL0.
    0x34 WATCHPOINT_LOWER "watchpoint";
    /// Watchpoint from the exception level that takes it.
    0x35 WATCHPOINT_SAME "watchpoint, same level";
    /// `BKPT` in AArch32 state.
    0x38 BKPT32 "BKPT (AArch32)";
    /// Vector catch in AArch32 state.
    0x3a VECTOR_CATCH32 "vector catch (AArch32)";
    /// `BRK` in AArch64 state.
    0x3c BRK64 "BRK";
    /// Profiling.
    0x3d PROFILING "profiling";
}

impl Ec {
    /// The class with this number, truncated to six bits.
    #[inline]
    pub const fn new(bits: u8) -> Self {
        Self(bits & 0x3f)
    }

    /// The class's number, below 64.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl fmt::Debug for Ec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x} ({})", self.0, self.name())
    }
}
