use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// L1's memory, with the tables of both stages. L1 maps L2 to its own addresses from `OFFSET` on, in 2 MiB
/// blocks.
struct Memory(BTreeMap<u64, u64>);

const RAM: u64 = 0x4000_0000;
const OFFSET: u64 = 0x1000_0000;
const S2_ROOT: u64 = 0x8000_0000;
const S2_LEVEL_2: u64 = 0x8000_4000;

impl GuestMemory for Memory {
    fn read(&self, address: u64) -> Option<u64> {
        (address < 0x1_0000_0000).then(|| self.0.get(&address).copied().unwrap_or(0))
    }
}

impl Memory {
    /// L2 has 8 MiB from `RAM` on; the last 2 MiB are read-only, the 2 MiB before are device memory.
    fn new() -> Self {
        let mut words = BTreeMap::from([(S2_ROOT + 8, S2_LEVEL_2 | 3)]);
        for (n, flags) in [(0, 0x7fd), (1, 0x7fd), (2, 0x7c5), (3, 0x77d)] {
            words.insert(S2_LEVEL_2 + 8 * n, (RAM + OFFSET + (n << 21)) | flags);
        }
        Self(words)
    }

    /// Writes at an L2 address.
    fn set(&mut self, ipa: u64, word: u64) {
        self.0.insert(ipa + OFFSET, word);
    }
}

fn stage2() -> Stage2 {
    // 4 KiB, 39 bits from level 1, 40 bits of output.
    Stage2::decode(25 | 1 << 6 | 2 << 16, S2_ROOT, 1, 0, 40)
}

/// L2: 48 bits of 4 KiB below, 42 bits of 64 KiB above; attribute 1 is Normal write-back, 2 is non-cacheable.
const STAGE1: Stage1 = Stage1 { tcr: 16 | 22 << 16 | 3 << 30 | 2 << 32, ttbr: [RAM, RAM + 0x10_0000], sctlr: 1, mair: 0x44_ff_00, hcr: 1 };
const USER: u64 = 0x1234_5678_9000;
const KERNEL: u64 = 0xffff_fe00_2345_0000;
const LEAF: u64 = 1 << 10 | 3 << 8 | 1 << 2 | 3;

fn with_tables(user: u64, kernel: u64) -> Memory {
    let mut memory = Memory::new();
    let mut table = RAM;
    for (level, shift) in [(0, 39), (1, 30), (2, 21)] {
        let next = RAM + 0x1000 * (level + 1);
        memory.set(table + 8 * (USER >> shift & 0x1ff), next | 3);
        table = next;
    }
    memory.set(table + 8 * (USER >> 12 & 0x1ff), user);
    // 42 bits are two levels: 13 bits at level 2, 13 at level 3.
    let below = KERNEL & ((1 << 42) - 1);
    memory.set(RAM + 0x10_0000 + 8 * (below >> 29), (RAM + 0x12_0000) | 3);
    memory.set(RAM + 0x12_0000 + 8 * (below >> 16 & 0x1fff), kernel);
    memory
}

fn at(name: &str) -> At {
    let regime = if name.starts_with("S12") { Regime::Stages12 } else { Regime::Stage1 };
    let level = if name.contains("E0") { Level::El0 } else { Level::El1 };
    At { regime, level, write: name.contains('W'), pan: name.ends_with('P') }
}

fn par(memory: &Memory, stage1: &Stage1, name: &str, va: u64) -> u64 {
    translate(at(name), stage1, &stage2(), memory, va, true)
}

fn failed(status: u64, stage: u64) -> u64 {
    1 | status << 1 | stage | 1 << 11
}

const S: u64 = 1 << 9;
const PTW: u64 = 1 << 8;

#[test]
fn instructions_by_name() {
    let cases = [
        ((0, 8, 0), "S1E1R"),
        ((0, 8, 1), "S1E1W"),
        ((0, 8, 2), "S1E0R"),
        ((0, 8, 3), "S1E0W"),
        ((0, 9, 0), "S1E1RP"),
        ((0, 9, 1), "S1E1WP"),
        ((4, 8, 4), "S12E1R"),
        ((4, 8, 5), "S12E1W"),
        ((4, 8, 6), "S12E0R"),
        ((4, 8, 7), "S12E0W"),
    ];
    for ((op1, crm, op2), name) in cases {
        assert_eq!(decode(SysReg::new(1, op1, 7, crm, op2)), Some(at(name)), "{name}");
    }
    assert_eq!(decode(SysReg::new(1, 4, 7, 8, 1)).map(|at| at.regime), Some(Regime::El2));
    for reg in [SysReg::new(1, 0, 7, 8, 4), SysReg::new(1, 4, 7, 8, 2), SysReg::new(1, 0, 7, 9, 2), SysReg::new(1, 0, 8, 8, 0)] {
        assert_eq!(decode(reg), None);
    }
}

#[test]
fn translations_of_one_and_two_stages() {
    let memory = with_tables((RAM + 0x5000) | LEAF, (RAM + 0x20_0000) | LEAF);
    assert_eq!(par(&memory, &STAGE1, "S1E1R", USER + 0x123), 0xff << 56 | (RAM + 0x5000) | 1 << 11 | 3 << 7);
    assert_eq!(par(&memory, &STAGE1, "S12E1R", USER), 0xff << 56 | (RAM + OFFSET + 0x5000) | 1 << 11 | 3 << 7);
    assert_eq!(par(&memory, &STAGE1, "S12E1W", KERNEL + 0x1234), 0xff << 56 | (RAM + OFFSET + 0x20_1000) | 1 << 11 | 3 << 7);
}

#[test]
fn second_stage_faults_and_attributes() {
    let device = with_tables((RAM + 0x40_0000) | LEAF, 0);
    assert_eq!(par(&device, &STAGE1, "S12E1R", USER), (RAM + OFFSET + 0x40_0000) | 1 << 11 | 2 << 7);
    let read_only = with_tables((RAM + 0x60_0000) | LEAF, 0);
    assert_eq!(par(&read_only, &STAGE1, "S12E1R", USER) & 1, 0);
    assert_eq!(par(&read_only, &STAGE1, "S12E1W", USER), failed(0b00_1110, S));
    assert_eq!(par(&read_only, &STAGE1, "S1E1W", USER) & 1, 0);
    let nowhere = with_tables(0x9000_0000 | LEAF, 0);
    assert_eq!(par(&nowhere, &STAGE1, "S12E1R", USER), failed(0b00_0101, S));
    // A first-stage table that the second stage doesn't map.
    let mut lost = with_tables(0, 0);
    lost.set(RAM + 8 * (USER >> 39 & 0x1ff), 0x9000_0000 | 3);
    assert_eq!(par(&lost, &STAGE1, "S1E1R", USER), failed(0b00_0101, S | PTW));
}

#[test]
fn faults_of_the_first_stage() {
    let page = RAM + 0x5000;
    let el0 = 1 << 6;
    let read_only = 1 << 7;
    let cases = [
        (0, "S1E1R", 0b00_0111),
        (page | 1, "S1E1R", 0b00_0111),
        (page | LEAF & !(1 << 10), "S1E1R", 0b00_1011),
        (page | LEAF, "S1E0R", 0b00_1111),
        (page | LEAF | read_only, "S1E1W", 0b00_1111),
        (page | LEAF | el0 | read_only, "S1E0W", 0b00_1111),
        (page | LEAF | el0, "S1E1RP", 0b00_1111),
        (1 << 47 | LEAF, "S1E1R", 0b00_0011),
    ];
    for (leaf, name, status) in cases {
        assert_eq!(par(&with_tables(leaf, 0), &STAGE1, name, USER), failed(status, 0), "{name} {leaf:#x}");
    }
    for (leaf, name) in
        [(page | LEAF | el0, "S1E0W"), (page | LEAF | el0, "S1E1R"), (page | LEAF, "S1E1WP"), (page | LEAF | read_only, "S1E1R")]
    {
        assert_eq!(par(&with_tables(leaf, 0), &STAGE1, name, USER) & 1, 0, "{name} {leaf:#x}");
    }
    // Tables restrict the permissions of leaves, unless hierarchical permissions are disabled.
    let mut below = with_tables(page | LEAF | el0, 0);
    below.set(RAM + 0x1000 + 8 * (USER >> 30 & 0x1ff), (RAM + 0x2000) | 3 | 1 << 61 | 1 << 62);
    assert_eq!(par(&below, &STAGE1, "S1E0R", USER), failed(0b00_1111, 0));
    assert_eq!(par(&below, &STAGE1, "S1E1W", USER), failed(0b00_1111, 0));
    assert_eq!(par(&below, &Stage1 { tcr: STAGE1.tcr | 1 << 41, ..STAGE1 }, "S1E0W", USER) & 1, 0);
    // Hardware management of access flag and dirty state.
    let managed = Stage1 { tcr: STAGE1.tcr | 3 << 39, ..STAGE1 };
    assert_eq!(par(&with_tables(page | LEAF & !(1 << 10), 0), &managed, "S1E1R", USER) & 1, 0);
    assert_eq!(par(&with_tables(page | LEAF | read_only | 1 << 51, 0), &managed, "S1E1W", USER) & 1, 0);
}

#[test]
fn addresses_outside_of_the_ranges() {
    let memory = with_tables((RAM + 0x5000) | LEAF, (RAM + 0x20_0000) | LEAF);
    let translation = failed(0b00_0100, 0);
    assert_eq!(par(&memory, &STAGE1, "S1E1R", USER | 1 << 48), translation);
    assert_eq!(par(&memory, &STAGE1, "S1E1R", 0xffff_0000_0000_0000), translation);
    // A tag, with and without TBI0.
    assert_eq!(par(&memory, &STAGE1, "S1E1R", USER | 0xab << 56), translation);
    assert_eq!(par(&memory, &Stage1 { tcr: STAGE1.tcr | 1 << 37, ..STAGE1 }, "S1E1R", USER | 0x2b << 56) & 1, 0);
    // EPD0, and E0PD1 for EL0.
    assert_eq!(par(&memory, &Stage1 { tcr: STAGE1.tcr | 1 << 7, ..STAGE1 }, "S1E1R", USER), translation);
    let hidden = Stage1 { tcr: STAGE1.tcr | 1 << 56, ..STAGE1 };
    assert_eq!(par(&memory, &hidden, "S1E0R", KERNEL), translation);
    assert_eq!(par(&memory, &hidden, "S1E1R", KERNEL) & 1, 0);
}

#[test]
fn with_the_first_stage_off() {
    let memory = Memory::new();
    let off = Stage1 { sctlr: 0, ..STAGE1 };
    assert_eq!(par(&memory, &off, "S1E0W", RAM), RAM | 1 << 11 | 2 << 7);
    assert_eq!(par(&memory, &off, "S12E1R", RAM), (RAM + OFFSET) | 1 << 11 | 2 << 7);
    let cached = Stage1 { sctlr: 1, hcr: 1 << 12, ..STAGE1 };
    assert_eq!(par(&memory, &cached, "S1E1R", RAM), 0xff << 56 | RAM | 1 << 11);
    assert_eq!(par(&memory, &off, "S1E1R", 1 << 50), failed(0, 0));
}

struct Noise(u64);

impl GuestMemory for Noise {
    fn read(&self, address: u64) -> Option<u64> {
        let bits = (address ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (bits >> 60 != 0).then_some(bits.rotate_left(17) | 1)
    }
}

proptest! {
    /// Any registers, any tables: a defined PAR_EL1, and no address outside L1's.
    #[test]
    fn hostile_registers(
        registers in any::<[u64; 6]>(), vtcr: u64, vttbr: u64, seed: u64, va: u64,
        at in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let [tcr, ttbr0, ttbr1, sctlr, mair, hcr] = registers;
        let at = At {
            regime: if at.0 { Regime::Stages12 } else { Regime::Stage1 },
            level: if at.1 { Level::El0 } else { Level::El1 },
            write: at.2,
            pan: at.3,
        };
        for (tcr, sctlr, vtcr) in [(tcr, sctlr, vtcr), (tcr & !0x3f003f | 20 | 30 << 16, sctlr | 1, 24 | 1 << 6 | 2 << 16)] {
            let stage1 = Stage1 { tcr, ttbr: [ttbr0, ttbr1], sctlr, mair, hcr };
            let stage2 = Stage2::decode(vtcr, vttbr, hcr, sctlr, 40);
            for va in [va, va >> 24, !(va >> 24)] {
                let par = translate(at, &stage1, &stage2, &Noise(seed), va, true);
                prop_assert!(par & 1 << 11 != 0);
                if par & 1 == 0 && at.regime == Regime::Stages12 {
                    prop_assert_eq!((par & super::par::PA) >> 40, 0);
                }
            }
        }
    }
}
