//! Instructions that the page may contain, and the walk over all paths.

use std::collections::HashMap;
use std::ops::Range;

use stile_gate::APIC_LINEAR;
use stile_gate::page::SIZE;

/// Width of code: 16, 32 or 64 bits.
pub type Mode = u32;
pub const MODES: [Mode; 3] = [16, 32, 64];

/// An instruction, as far as the rules ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// An exception, an interrupt or an exit: the IDT is not readable in the gate view, so that each of them exits.
    Leaves,
    /// Changes registers only.
    Next(usize),
    /// VMFUNC: leaves, exits, or has no effect.
    Switch(usize),
    /// Jumps, always or perhaps, by a number of bytes.
    Jump { length: usize, by: i64, always: bool },
    /// Stores four bytes that are in the instruction at an address that is in it.
    Store { length: usize, address: u64, value: u32 },
    /// Stores, in some other way.
    Writes(String),
    /// Anything else, of a length.
    Other(usize, String),
}

/// Decodes the instruction at the start of `bytes`.
pub type Decode = fn(bytes: &[u8], mode: Mode) -> Step;

/// Instructions that, without memory operands, change registers of the guest only: general and x87 ones, and flags.
pub const HARMLESS: &[&str] = &[
    "aaa", "aad", "aam", "aas", "adc", "add", "and", "arpl", "cbw", "cdq", "clc", "cld", "cli", "cmc", "cmp", "cwd", "cwde", "daa", "das",
    "dec", "fldpi", "fsub", "fsubp", "fsubr", "fucomi", "fucomip", "fucomp", "imul", "inc", "lahf", "mov", "movsxd", "nop", "or", "por",
    "ror", "sahf", "salc", "sar", "sbb", "shr", "stc", "std", "sti", "sub", "test", "wait", "xchg", "xor",
];

/// Instructions with implicit operands in memory, where nothing can be written: outside of 64-bit mode. Where they lead
/// to is an offset of this page again.
const IMPLICIT: &[&str] = &["callf", "into", "jmp", "pop", "popa", "popad", "push", "pusha", "pushad"];

/// Values that stores may have.
#[derive(Clone, Copy)]
pub struct Allowed<'a> {
    pub apic_ids: &'a [u8],
    pub vectors: &'a [u8],
}

impl Allowed<'_> {
    fn store(&self, address: u64, value: u32) -> bool {
        match address.wrapping_sub(APIC_LINEAR) {
            // Closed slots name destination 0, which may be reached only by an entry that is closed.
            0x310 => value & 0xff_ffff == 0xcc_cccc && self.apic_ids.contains(&((value >> 24) as u8)),
            // Fixed delivery, physical destination, no shorthand; reserved bits as they are.
            0x300 => value >> 8 == 0xcc_f340 && self.vectors.contains(&(value as u8)),
            _ => false,
        }
    }
}

/// Reason for which a page is refused.
#[derive(Debug)]
#[expect(dead_code, reason = "for messages")]
pub struct Refused {
    offset: usize,
    mode: Mode,
    why: String,
}

/// Steps without a jump outside of the page's paths: an instruction of the longest path.
const MOST_STEPS: usize = 40;

/// Checks a page from each of its offsets.
pub fn check(page: &[u8; SIZE], allowed: Allowed<'_>) -> Result<(), Refused> {
    check_range(page, 0..SIZE, allowed)
}

/// Checks a page from each offset in a range.
pub fn check_range(page: &[u8; SIZE], offsets: Range<usize>, allowed: Allowed<'_>) -> Result<(), Refused> {
    for decode in [super::iced::decode as Decode, super::yaxpeax::decode] {
        for mode in MODES {
            let mut walk = Walk { page: &twice(page), mode, decode, allowed, known: HashMap::new() };
            for offset in offsets.clone() {
                walk.from(offset, 0).map_err(|why| Refused { offset, mode, why })?;
            }
        }
    }
    Ok(())
}

/// The page, with itself behind it: each linear page of the gate view is this one.
fn twice(page: &[u8; SIZE]) -> Vec<u8> {
    [*page, *page].concat()
}

struct Walk<'a> {
    page: &'a [u8],
    mode: Mode,
    decode: Decode,
    allowed: Allowed<'a>,
    known: HashMap<usize, ()>,
}

impl Walk<'_> {
    fn from(&mut self, offset: usize, steps: usize) -> Result<(), String> {
        if self.known.contains_key(&offset) {
            return Ok(());
        }
        if steps > MOST_STEPS {
            return Err("a loop, or a long path".into());
        }
        let long = self.mode == 64;
        match (self.decode)(&self.page[offset..offset + 15], self.mode) {
            Step::Leaves => {}
            // Outside of 64-bit mode no page can be written.
            Step::Store { .. } | Step::Writes(_) if !long => {}
            Step::Next(length) | Step::Switch(length) => self.from((offset + length) % SIZE, steps + 1)?,
            Step::Jump { length, by, always } => {
                let next = offset + length;
                self.from((next as i64 + by).rem_euclid(SIZE as i64) as usize, steps + 1)?;
                if !always {
                    self.from(next % SIZE, steps + 1)?;
                }
            }
            Step::Store { length, address, value } if self.allowed.store(address, value) => {
                self.from((offset + length) % SIZE, steps + 1)?;
            }
            Step::Store { address, value, .. } => return Err(format!("at {offset:#x}: stores {value:#x} at {address:#x}")),
            Step::Other(length, what) if !long && IMPLICIT.contains(&what.as_str()) => self.from((offset + length) % SIZE, steps + 1)?,
            Step::Writes(what) | Step::Other(_, what) => return Err(format!("at {offset:#x}: {what}")),
        }
        // Only a path that ends is known: a loop comes here never.
        self.known.insert(offset, ());
        Ok(())
    }
}

/// The stores of the path that is taken from an offset, and where it leaves by VMFUNC.
pub fn straight(page: &[u8; SIZE], mut offset: usize, decode: Decode) -> (Vec<(u64, u32)>, usize) {
    let page = twice(page);
    let mut stores = Vec::new();
    loop {
        match decode(&page[offset..offset + 15], 64) {
            Step::Next(length) => offset += length,
            Step::Store { length, address, value } => {
                stores.push((address, value));
                offset += length;
            }
            Step::Jump { length, by, .. } => offset = (offset as i64 + length as i64 + by) as usize,
            Step::Switch(length) => return (stores, offset + length),
            other => panic!("at {offset:#x}: {other:?}"),
        }
    }
}
