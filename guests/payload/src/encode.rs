//! Instruction encodings, for tests with every register number or system register (A64 instruction set,
//! "Encoding").

/// A system register's encoding.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sysreg {
    /// 2 or 3.
    pub op0: u32,
    /// 0 to 7.
    pub op1: u32,
    /// 0 to 15.
    pub crn: u32,
    /// 0 to 15.
    pub crm: u32,
    /// 0 to 7.
    pub op2: u32,
}

impl Sysreg {
    /// The register S`op0`_`op1`_C`crn`_C`crm`_`op2`.
    pub const fn new(op0: u32, op1: u32, crn: u32, crm: u32, op2: u32) -> Self {
        Self { op0, op1, crn, crm, op2 }
    }

    const fn fields(self) -> u32 {
        self.op0 << 19 | self.op1 << 16 | self.crn << 12 | self.crm << 8 | self.op2 << 5
    }

    /// MRS Xt.
    pub const fn read(self, t: u32) -> u32 {
        0xD530_0000 & !(3 << 19) | self.fields() | t
    }

    /// MSR from Xt. With op0 1 this is SYS.
    pub const fn write(self, t: u32) -> u32 {
        0xD510_0000 & !(3 << 19) | self.fields() | t
    }
}

impl core::fmt::Display for Sysreg {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        write!(f, "S{}_{}_C{}_C{}_{}", self.op0, self.op1, self.crn, self.crm, self.op2)
    }
}

/// LDR (unsigned offset 0) of 1, 2, 4 or 8 bytes: `size` is the logarithm.
pub const fn load(size: u32, t: u32, n: u32) -> u32 {
    0x3940_0000 | size << 30 | n << 5 | t
}

/// STR (unsigned offset 0); `size` is the logarithm of the bytes.
pub const fn store(size: u32, t: u32, n: u32) -> u32 {
    0x3900_0000 | size << 30 | n << 5 | t
}

/// LDRSB, LDRSH or LDRSW to a W register (`wide` false) or an X register.
pub const fn load_signed(size: u32, wide: bool, t: u32, n: u32) -> u32 {
    let opc = if wide { 2 } else { 3 };
    0x3900_0000 | size << 30 | opc << 22 | n << 5 | t
}

/// LDUR of a word.
pub const fn load_unscaled(t: u32, n: u32) -> u32 {
    0xB840_0000 | n << 5 | t
}

/// LDAR of a word.
pub const fn load_acquire(t: u32, n: u32) -> u32 {
    0x88DF_FC00 | n << 5 | t
}

/// STLR of a word.
pub const fn store_release(t: u32, n: u32) -> u32 {
    0x889F_FC00 | n << 5 | t
}

/// Loads and stores without a syndrome (ESR_EL2.ISV 0): base register x1, transfer registers x2 and x3 or v2
/// and v3.
pub const UNDECODABLE: [(&str, u32); 12] = [
    ("ldp w2, w3, [x1]", 0x2940_0C22),
    ("stp w2, w3, [x1]", 0x2900_0C22),
    ("ldp x2, x3, [x1]", 0xA940_0C22),
    ("stp x2, x3, [x1]", 0xA900_0C22),
    ("ldr w2, [x1], #4", 0xB840_4422),
    ("str w2, [x1], #4", 0xB800_4422),
    ("ldr w2, [x1, #4]!", 0xB840_4C22),
    ("str w2, [x1, #4]!", 0xB800_4C22),
    ("ldr q2, [x1]", 0x3DC0_0022),
    ("str q2, [x1]", 0x3D80_0022),
    ("ld1 {v2.4s}, [x1]", 0x4C40_7822),
    ("st1 {v2.4s}, [x1]", 0x4C00_7822),
];

/// `hvc #immediate`.
pub const fn hvc(immediate: u32) -> u32 {
    0xD400_0002 | (immediate & 0xFFFF) << 5
}

/// `hlt #immediate`.
pub const fn hlt(immediate: u32) -> u32 {
    0xD440_0000 | (immediate & 0xFFFF) << 5
}

/// `brk #immediate`.
pub const fn brk(immediate: u32) -> u32 {
    0xD420_0000 | (immediate & 0xFFFF) << 5
}

/// `svc #immediate`.
pub const fn svc(immediate: u32) -> u32 {
    0xD400_0001 | (immediate & 0xFFFF) << 5
}

/// `smc #0`.
pub const SMC: u32 = 0xD400_0003;
/// `udf #0`.
pub const UDF: u32 = 0;
/// `nop`.
pub const NOP: u32 = 0xD503_201F;
/// `blr x1`.
pub const BLR_X1: u32 = 0xD63F_0020;
