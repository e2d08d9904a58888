//! MSR bitmaps: which MSRs guests reach without an exit.

use stile_apic::{offset, reads_from_page};
use stile_blob::ApicVirtualization;
use stile_paging::PAGE_SIZE;

use crate::address_space;
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::timer;
use crate::arena::Arena;

/// MSRs that guests read and write without an exit: the VMCS, or load and put, give each its own.
const PASSED: [u32; 15] = [
    msr::STAR,
    msr::LSTAR,
    msr::CSTAR,
    msr::FMASK,
    msr::FS_BASE,
    msr::GS_BASE,
    msr::KERNEL_GS_BASE,
    msr::TSC_AUX,
    msr::SYSENTER_CS,
    msr::SYSENTER_ESP,
    msr::SYSENTER_EIP,
    msr::IA32_PAT,
    msr::IA32_EFER,
    msr::TSC,
    // Entries load it, and exits save it. KVM reads it before each of its entries.
    msr::DEBUGCTL,
];

/// Whether writes of an MSR of [`PASSED`] exit.
const fn is_read_only(register: u32) -> bool {
    matches!(register, msr::TSC | msr::DEBUGCTL)
}

/// The MSR bitmap (the manual, "MSR-Bitmap Address"): reads of low and high numbers, then writes of them; a bit that is set exits.
pub fn msr_bitmap(x2apic: ApicVirtualization, passes_deadline: bool, arena: &Arena) -> Result<u64, &'static str> {
    let page = arena.allocate_pages(PAGE_SIZE)?;
    // SAFETY: the page is used for nothing else.
    let bytes = unsafe { core::slice::from_raw_parts_mut(address_space::physical(page), PAGE_SIZE as usize) };
    bytes.fill(0xff);
    for register in PASSED.into_iter().chain(passes_deadline.then_some(msr::IA32_TSC_DEADLINE)) {
        let quarter = if register >= 0xc000_0000 { 1024 } else { 0 };
        let (byte, bit) = ((register as usize & 0x1fff) / 8, register % 8);
        // If an expiry does not clear IA32_TSC_DEADLINE, as in Bochs 3.0, reads exit and the handler answers them.
        if register != msr::IA32_TSC_DEADLINE || !timer::keeps_deadline() {
            bytes[quarter + byte] &= !(1 << bit);
        }
        if !is_read_only(register) {
            bytes[2048 + quarter + byte] &= !(1 << bit);
        }
    }
    if x2apic >= ApicVirtualization::Registers {
        open_x2apic(bytes, x2apic);
    }
    Ok(page)
}

/// Returns the bitmap with which accesses to IA32_TSC_DEADLINE exit, and the one with which they do not.
pub fn msr_bitmaps(x2apic: ApicVirtualization, arena: &Arena) -> Result<[u64; 2], &'static str> {
    Ok([msr_bitmap(x2apic, false, arena)?, msr_bitmap(x2apic, true, arena)?])
}

/// Clears bits of an MSR bitmap for x2APIC registers that the processor virtualizes: plain registers, the TPR, and
/// with virtual-interrupt delivery EOI and self-IPI.
fn open_x2apic(bitmap: &mut [u8], level: ApicVirtualization) {
    const WRITES: usize = 2048;
    let delivers = level >= ApicVirtualization::Delivery;
    let mut open = |half: usize, register: u32| bitmap[half + register as usize / 8] &= !(1 << (register % 8));
    for register in (msr::X2APIC..msr::X2APIC + 0x100).filter(|&register| reads_from_page(register, delivers)) {
        open(0, register);
    }
    let written = [offset::TPR, offset::EOI, offset::SELF_IPI];
    for register in written.into_iter().take(if delivers { written.len() } else { 1 }) {
        open(WRITES, msr::X2APIC + (register >> 4));
    }
}

/// Index of the word, of 64 bits, in an MSR bitmap that has the bit of an MSR's reads.
const fn word_of(register: u32) -> usize {
    let quarter = if register >= 0xc000_0000 { 128 } else { 0 };
    quarter + (register as usize & 0x1fff) / 64
}

/// Words of an MSR bitmap in which Stile lets an MSR through, with Stile's values of them (a bit that is set exits). Only
/// these words matter in a bitmap of L1's.
pub const PASSED_WORDS: [(usize, u64); WORDS.len()] = {
    let mut words = [(0, 0); WORDS.len()];
    let mut at = 0;
    while at < WORDS.len() {
        words[at] = (WORDS[at], passed_word(WORDS[at]));
        at += 1;
    }
    words
};

const WORDS: [usize; 10] = [
    word_of(msr::TSC),
    word_of(msr::SYSENTER_CS),
    word_of(msr::IA32_PAT),
    word_of(msr::IA32_EFER),
    word_of(msr::FS_BASE),
    word_of(msr::DEBUGCTL),
    WRITES + word_of(msr::SYSENTER_CS),
    WRITES + word_of(msr::IA32_PAT),
    WRITES + word_of(msr::IA32_EFER),
    WRITES + word_of(msr::FS_BASE),
];
/// The first word for writes.
const WRITES: usize = 256;

const fn passed_word(word: usize) -> u64 {
    let mut value = u64::MAX;
    let mut at = 0;
    while at < PASSED.len() {
        let (register, of_reads) = (PASSED[at], word_of(PASSED[at]));
        if of_reads == word || WRITES + of_reads == word && !is_read_only(register) {
            value &= !(1 << (register % 64));
        }
        at += 1;
    }
    value
}

const _: () = {
    // Each register that is let through is in one of the words.
    let mut at = 0;
    while at < PASSED.len() {
        let mut word = 0;
        while WORDS[word] != word_of(PASSED[at]) {
            word += 1;
        }
        at += 1;
    }
};
