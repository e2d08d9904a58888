//! Classes of A64 instructions: Arm Architecture Reference Manual for A-profile, "A64 Instruction Set Encoding".

/// Counted kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any instruction.
    Instruction,
    /// MRS.
    SysregRead,
    /// MSR of a register. (MSR of an immediate sets a field of PSTATE, and is not counted.)
    SysregWrite,
    /// DSB, DMB, ISB and SB.
    Barrier,
    /// TLBI, AT, DC, IC and the prediction restrictions.
    Maintenance,
    /// An instruction that loads. An atomic one is both a load and a store.
    Load,
    /// An instruction that stores.
    Store,
}

/// Number of kinds.
pub const KINDS: usize = 7;

/// Returns the kinds of an instruction, besides [`Kind::Instruction`].
const fn kinds(word: u32) -> &'static [Kind] {
    match field(word, 25, 4) {
        0b1010 | 0b1011 if field(word, 22, 10) == 0b11_0101_0100 => system(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => access(load_or_store(word)),
        0b0010 => access(scalable_vector(word)),
        0b0000 => access(scalable_matrix(word)),
        _ => &[],
    }
}

/// YIELD, which a CPU executes while it waits for another one.
pub const YIELD: u32 = 0xd503_203f;

/// Whether an instruction writes memory atomically: a store-exclusive, or one that loads and stores.
pub fn is_atomic(word: u32) -> bool {
    store_exclusive(word).is_some() || kinds(word) == [Kind::Load, Kind::Store] && !is_copy(word)
}

/// The register that gets the status of a store-exclusive ("Load/store exclusive register" and "pair"): 0 if it stored.
pub const fn store_exclusive(word: u32) -> Option<usize> {
    // Bits 29:24 are 0b001000; o2 (23) and L (22) are 0; o1 (21) is set for pairs of words or doublewords only.
    let is_one = field(word, 22, 8) == 0b0010_0000 && (!bit(word, 21) || bit(word, 31));
    if is_one { Some(field(word, 16, 5) as usize) } else { None }
}

/// "Memory Copy and Memory Set".
const fn is_copy(word: u32) -> bool {
    field(word, 27, 3) == 0b011 && bit(word, 24)
}

/// Instructions of a block that all run or do not run: one that may trap, and those before it.
#[derive(Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Index in the block of the last instruction.
    pub last: usize,
    /// Their number by kind.
    pub counts: [u32; KINDS],
}

/// Divides a block. An instruction is `None` if it has not 32 bits (AArch32, which only guests use).
pub fn stretches(block: &[Option<u32>]) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut counts = [0; KINDS];
    for (index, word) in block.iter().enumerate() {
        counts[Kind::Instruction as usize] += 1;
        for kind in word.map_or(&[][..], kinds) {
            counts[*kind as usize] += 1;
        }
        if !word.is_some_and(falls_through) || index + 1 == block.len() {
            stretches.push(Stretch { last: index, counts });
            counts = [0; KINDS];
        }
    }
    stretches
}

/// Whether the next instruction always follows this one: arithmetic, which can't trap.
const fn falls_through(word: u32) -> bool {
    match field(word, 25, 4) {
        // Data processing, immediate.
        0b1000 | 0b1001 => true,
        // Data processing, register; except those with one or two sources, some of which authenticate pointers.
        0b0101 | 0b1101 => field(word, 21, 8) != 0b1101_0110,
        _ => false,
    }
}

/// "System instructions", "System register move", "Barriers", "Hints" and "PSTATE".
const fn system(word: u32) -> &'static [Kind] {
    let read = bit(word, 21);
    let (crn, op2) = (field(word, 12, 4), field(word, 5, 3));
    match field(word, 19, 2) {
        // DSB with nXS, DSB, DMB, ISB, SB.
        0 if !read && crn == 3 && matches!(op2, 1 | 4..=7) => &[Kind::Barrier],
        0 => &[],
        // SYS. (SYSL, which returns a result, has no maintenance operations.)
        1 if !read && matches!(crn, 7..=9) => &[Kind::Maintenance],
        1 => &[],
        _ if read => &[Kind::SysregRead],
        _ => &[Kind::SysregWrite],
    }
}

/// Memory accesses of an instruction.
#[derive(Debug, Clone, Copy)]
enum Access {
    None,
    Load,
    Store,
    Both,
}

const fn access(access: Access) -> &'static [Kind] {
    match access {
        Access::None => &[],
        Access::Load => &[Kind::Load],
        Access::Store => &[Kind::Store],
        Access::Both => &[Kind::Load, Kind::Store],
    }
}

const fn load_if(load: bool) -> Access {
    if load { Access::Load } else { Access::Store }
}

/// "Loads and Stores".
const fn load_or_store(word: u32) -> Access {
    let vector = bit(word, 26);
    match (field(word, 28, 2), bit(word, 24)) {
        // Structures of vectors.
        (0b00, _) if vector => load_if(bit(word, 22)),
        (0b00, _) => exclusive(word),
        // "Load register (literal)", without its prefetch.
        (0b01, false) if !vector && field(word, 30, 2) == 3 => Access::None,
        (0b01, false) => Access::Load,
        (0b01, true) => ordered_or_tag(word),
        // Pairs.
        (0b10, _) => load_if(bit(word, 22)),
        _ => register(word),
    }
}

/// "Load/store exclusive register", "Load/store ordered", "Compare and swap", and each of them with pairs.
const fn exclusive(word: u32) -> Access {
    let (pair_or_ordered, swap) = (!bit(word, 23), bit(word, 21));
    // A pair's size is one bit.
    if swap && !(pair_or_ordered && bit(word, 31)) { Access::Both } else { load_if(bit(word, 22)) }
}

/// "LDAPR/STLR (unscaled immediate)", "Memory Copy and Memory Set", "Load/store memory tags" and 128-bit atomics.
const fn ordered_or_tag(word: u32) -> Access {
    let (size, opc, form) = (field(word, 30, 2), field(word, 22, 2), field(word, 10, 2));
    match (bit(word, 21), form) {
        (false, 0b01) if opc == 0b11 => Access::Store,
        (false, 0b01) => Access::Both,
        (false, 0b00) => load_if(opc != 0),
        (false, _) => load_if(bit(word, 22)),
        // Tags.
        (true, _) if size == 0b11 => load_if(form == 0 && bit(word, 22)),
        (true, _) => Access::Both,
    }
}

/// "Load/store register" in all its forms, and "Atomic memory operations".
const fn register(word: u32) -> Access {
    let (size, opc) = (field(word, 30, 2), field(word, 22, 2));
    if !bit(word, 24) && bit(word, 21) {
        match field(word, 10, 2) {
            0b00 => return atomic(word),
            // With pointer authentication.
            0b01 | 0b11 => return Access::Load,
            _ => {}
        }
    }
    match opc {
        _ if bit(word, 26) => load_if(bit(word, 22)),
        0b00 => Access::Store,
        // Prefetches.
        0b10 if size == 0b11 => Access::None,
        _ => Access::Load,
    }
}

const fn atomic(word: u32) -> Access {
    match (bit(word, 15), field(word, 12, 3)) {
        // LDAPR, LD64B.
        (true, 0b100 | 0b101) => Access::Load,
        // ST64B, ST64BV0, ST64BV.
        (true, 0b001..=0b011) => Access::Store,
        _ => Access::Both,
    }
}

/// "SVE encodings": loads and prefetches are not distinguished; hypervisors have none of the latter.
const fn scalable_vector(word: u32) -> Access {
    match field(word, 29, 3) {
        0b100..=0b110 => Access::Load,
        0b111 => Access::Store,
        _ => Access::None,
    }
}

/// "SME encodings", as far as they move single rows of ZA, or ZT0.
const fn scalable_matrix(word: u32) -> Access {
    if field(word, 29, 3) == 0b111 { load_if(!bit(word, 21)) } else { Access::None }
}

const fn field(word: u32, low: u32, width: u32) -> u32 {
    word >> low & ((1 << width) - 1)
}

const fn bit(word: u32, at: u32) -> bool {
    field(word, at, 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_count_as_what_they_do() {
        use Kind::*;
        let none: &[Kind] = &[];
        let table: &[(&str, u32, &[Kind])] = &[
            ("mrs x0, esr_el2", 0xd53c_5200, &[SysregRead]),
            ("mrs x0, cntpct_el0", 0xd53b_e020, &[SysregRead]),
            ("mrs x0, sp_el0", 0xd538_4100, &[SysregRead]),
            ("mrs x0, nzcv", 0xd53b_4200, &[SysregRead]),
            ("mrs x0, mdscr_el1", 0xd530_0240, &[SysregRead]),
            ("msr hcr_el2, x0", 0xd51c_1100, &[SysregWrite]),
            ("msr daifset, #2", 0xd503_42df, none),
            ("msr spsel, #1", 0xd500_41bf, none),
            ("msr daif, x0", 0xd51b_4220, &[SysregWrite]),
            ("isb", 0xd503_3fdf, &[Barrier]),
            ("dsb ish", 0xd503_3b9f, &[Barrier]),
            ("dsb nshst", 0xd503_369f, &[Barrier]),
            ("dmb ld", 0xd503_3dbf, &[Barrier]),
            ("sb", 0xd503_30ff, &[Barrier]),
            ("clrex", 0xd503_3f5f, none),
            ("nop", 0xd503_201f, none),
            ("hint #126", 0xd503_2fdf, none),
            ("wfi", 0xd503_207f, none),
            ("yield", 0xd503_203f, none),
            ("csdb", 0xd503_229f, none),
            ("tlbi vmalls12e1is", 0xd50c_83df, &[Maintenance]),
            ("tlbi ipas2e1is, x0", 0xd50c_8020, &[Maintenance]),
            ("at s1e1r, x0", 0xd508_7800, &[Maintenance]),
            ("dc civac, x0", 0xd50b_7e20, &[Maintenance]),
            ("dc zva, x0", 0xd50b_7420, &[Maintenance]),
            ("ic ialluis", 0xd508_711f, &[Maintenance]),
            ("ic ivau, x0", 0xd50b_7520, &[Maintenance]),
            ("ldr x0, [x1]", 0xf940_0020, &[Load]),
            ("ldr x0, [x1, x2, lsl #3]", 0xf862_7820, &[Load]),
            ("ldr x0, [x1], #8", 0xf840_8420, &[Load]),
            ("ldur w0, [x1, #-4]", 0xb85f_c020, &[Load]),
            ("ldrsw x0, [x1]", 0xb980_0020, &[Load]),
            ("ldrsb w0, [x1, #1]", 0x39c0_0420, &[Load]),
            ("ldrb w0, [x1]", 0x3940_0020, &[Load]),
            ("ldr d0, [x1]", 0xfd40_0020, &[Load]),
            ("ldr q0, [x1, #16]", 0x3dc0_0420, &[Load]),
            ("ldr x0, . + 8", 0x5800_0040, &[Load]),
            ("ldr d0, . + 8", 0x5c00_0040, &[Load]),
            ("ldrsw x0, . + 8", 0x9800_0040, &[Load]),
            ("prfm pldl1keep, . + 8", 0xd800_0040, none),
            ("prfm pldl1keep, [x0]", 0xf980_0000, none),
            ("prfm pldl1keep, [x0, x1]", 0xf8a1_6800, none),
            ("prfum pldl1keep, [x0, #-1]", 0xf89f_f000, none),
            ("ldtr x0, [x1]", 0xf840_0820, &[Load]),
            ("sttr x0, [x1]", 0xf800_0820, &[Store]),
            ("str x0, [x1]", 0xf900_0020, &[Store]),
            ("str w0, [x1, #-4]!", 0xb81f_cc20, &[Store]),
            ("strb w0, [x1, x2]", 0x3822_6820, &[Store]),
            ("str q0, [x1]", 0x3d80_0020, &[Store]),
            ("stur d0, [x1, #-8]", 0xfc1f_8020, &[Store]),
            ("ldp x0, x1, [sp], #16", 0xa8c1_07e0, &[Load]),
            ("ldpsw x0, x1, [sp]", 0x6940_07e0, &[Load]),
            ("ldnp x0, x1, [sp]", 0xa840_07e0, &[Load]),
            ("stp x0, x1, [sp, #-16]!", 0xa9bf_07e0, &[Store]),
            ("stp q0, q1, [x0]", 0xad00_0400, &[Store]),
            ("stnp x0, x1, [sp]", 0xa800_07e0, &[Store]),
            ("ldxr x0, [x1]", 0xc85f_7c20, &[Load]),
            ("ldaxr w0, [x1]", 0x885f_fc20, &[Load]),
            ("stxr w0, x1, [x2]", 0xc800_7c41, &[Store]),
            ("stlxr w0, x1, [x2]", 0xc800_fc41, &[Store]),
            ("ldxp x0, x1, [x2]", 0xc87f_0440, &[Load]),
            ("stxp w0, x1, x2, [x3]", 0xc820_0861, &[Store]),
            ("ldar x0, [x1]", 0xc8df_fc20, &[Load]),
            ("stlr x0, [x1]", 0xc89f_fc20, &[Store]),
            ("stlrb w0, [x1]", 0x089f_fc20, &[Store]),
            ("ldapr x0, [x1]", 0xf8bf_c020, &[Load]),
            ("ldapur x0, [x1, #8]", 0xd940_8020, &[Load]),
            ("ldapursw x0, [x1, #8]", 0x9980_8020, &[Load]),
            ("stlur x0, [x1, #8]", 0xd900_8020, &[Store]),
            ("cas x0, x1, [x2]", 0xc8a0_7c41, &[Load, Store]),
            ("casalb w0, w1, [x2]", 0x08e0_fc41, &[Load, Store]),
            ("casp x0, x1, x2, x3, [x4]", 0x4820_7c82, &[Load, Store]),
            ("ldadd x0, x1, [x2]", 0xf820_0041, &[Load, Store]),
            ("stadd x0, [x2]", 0xf820_005f, &[Load, Store]),
            ("swpal x0, x1, [x2]", 0xf8e0_8041, &[Load, Store]),
            ("ldumin w0, w1, [x2]", 0xb820_7041, &[Load, Store]),
            ("ldraa x0, [x1]", 0xf820_0420, &[Load]),
            ("ld1 {v0.16b}, [x0]", 0x4c40_7000, &[Load]),
            ("st4 {v0.16b-v3.16b}, [x0], #64", 0x4c9f_0000, &[Store]),
            ("ld1r {v0.8b}, [x0]", 0x0d40_c000, &[Load]),
            ("st1 {v0.b}[1], [x0]", 0x0d00_0400, &[Store]),
            ("stg x0, [x1]", 0xd920_0820, &[Store]),
            ("st2g x0, [x1]", 0xd9a0_0820, &[Store]),
            ("ldg x0, [x1]", 0xd960_0020, &[Load]),
            ("ldgm x0, [x1]", 0xd9e0_0020, &[Load]),
            ("stgm x0, [x1]", 0xd9a0_0020, &[Store]),
            ("stzgm x0, [x1]", 0xd920_0020, &[Store]),
            ("stgp x0, x1, [x2]", 0x6900_0440, &[Store]),
            ("cpyfp [x0]!, [x1]!, x2!", 0x1901_0440, &[Load, Store]),
            ("cpyp [x0]!, [x1]!, x2!", 0x1d01_0440, &[Load, Store]),
            ("setp [x0]!, x1!, x2", 0x19c2_0420, &[Store]),
            ("setgp [x0]!, x1!, x2", 0x1dc2_0420, &[Store]),
            ("ldiapp x0, x1, [x2]", 0xd941_1840, &[Load]),
            ("stilp x0, x1, [x2]", 0xd901_1840, &[Store]),
            ("ldclrp x0, x1, [x2]", 0x1921_1040, &[Load, Store]),
            ("swpp x0, x1, [x2]", 0x1921_8040, &[Load, Store]),
            ("ldr z0, [x0]", 0x8580_4000, &[Load]),
            ("ldr p0, [x0]", 0x8580_0000, &[Load]),
            ("str z0, [x0, #1, mul vl]", 0xe580_4400, &[Store]),
            ("str p0, [x0]", 0xe580_0000, &[Store]),
            ("ld1d {z0.d}, p0/z, [x0]", 0xa5e0_a000, &[Load]),
            ("st1b {z0.b}, p0, [x0]", 0xe400_e000, &[Store]),
            ("ldr za[w12, 0], [x0]", 0xe100_0000, &[Load]),
            ("str za[w12, 0], [x0]", 0xe120_0000, &[Store]),
            ("add x0, x1, x2", 0x8b02_0020, none),
            ("addvl x0, x0, #1", 0x0420_5020, none),
            ("rdvl x0, #1", 0x04bf_5020, none),
            ("cmp x0, #1", 0xf100_041f, none),
            ("eret", 0xd69f_03e0, none),
            ("hvc #0", 0xd400_0002, none),
            ("br x3", 0xd61f_0060, none),
            ("tbz x0, #3, .", 0x3618_0000, none),
            ("udf #0", 0x0000_0000, none),
            ("fmov d0, x0", 0x9e67_0000, none),
            ("smopa za0.s, p0/m, p0/m, z0.b, z1.b", 0xa081_0000, none),
        ];
        for (text, word, expected) in table {
            assert_eq!(kinds(*word), *expected, "{text}");
        }
    }

    #[test]
    fn atomic_writes_are_told_from_others() {
        // stxr w0, x1, [x2]; stlxr w3, w1, [x2]; stxp w0, x1, x2, [x3]; cas x0, x1, [x2]; ldadd x0, x1, [x2]; stadd x0, [x2]; swpal
        let words = [0xc800_7c41, 0x8803_fc41, 0xc820_0861, 0xc8a0_7c41, 0xf820_0041, 0xf820_005f, 0xf8e0_8041];
        assert!(words.iter().all(|word| is_atomic(*word)));
        assert_eq!(words.map(store_exclusive), [Some(0), Some(3), Some(0), None, None, None, None]);
        // ldxr x0, [x1]; ldaxr; stlr x0, [x1]; casp; str; stp; cpyp; YIELD
        for word in [0xc85f_7c20, 0x885f_fc20, 0xc89f_fc20, 0xf900_0020, 0xa9bf_07e0, 0x1d01_0440, YIELD] {
            assert!(!is_atomic(word) && store_exclusive(word).is_none(), "{word:#x}");
        }
        assert!(is_atomic(0x4820_7c82) && store_exclusive(0x4820_7c82).is_none());
    }

    #[test]
    fn a_block_is_divided_where_it_may_be_left() {
        // add; ldr; add; add: no instruction follows the last one. Then an AArch32 instruction.
        let [add, ldr] = [0x9100_0400, 0xf940_0020].map(Some);
        assert_eq!(
            stretches(&[add, ldr, add, add]),
            [Stretch { last: 1, counts: [2, 0, 0, 0, 0, 1, 0] }, Stretch { last: 3, counts: [2, 0, 0, 0, 0, 0, 0] }]
        );
        assert_eq!(stretches(&[None]), [Stretch { last: 0, counts: [1, 0, 0, 0, 0, 0, 0] }]);
        assert_eq!(stretches(&[]), []);
    }

    #[test]
    fn only_what_cannot_trap_falls_through() {
        // add x0, x0, #1; and x0, x1, x2; csel x0, x1, x2, eq; madd x0, x1, x2, x3
        for word in [0x9100_0400, 0x8a02_0020, 0x9a82_0020, 0x9b02_0c20] {
            assert!(falls_through(word), "{word:#x}");
        }
        // autia x0, x1; ldr x0, [x1]; b .; mrs x0, esr_el2; fmov d0, x0; nop
        for word in [0xdac1_1020, 0xf940_0020, 0x1400_0000, 0xd53c_5200, 0x9e67_0000, 0xd503_201f] {
            assert!(!falls_through(word), "{word:#x}");
        }
    }
}
