//! L1's MSR bitmap and I/O bitmaps. A bitmap outside memory reads as ones: everything exits. Their addresses are multiples of 4 KiB, as
//! [`crate::checks`] requires before L2 runs.

use crate::controls::primary;
use crate::field::Field;
use crate::vmcs12::Vmcs12;

/// The number of words of 64 bits in an MSR bitmap.
pub const MSR_BITMAP_WORDS: usize = 512;

/// The word and the bit for an MSR in an MSR bitmap ("MSR-Bitmap Address"). `None` if the bitmap does not cover it: the access exits.
pub const fn msr_bit(number: u32, is_write: bool) -> Option<(usize, u32)> {
    let half = match number {
        0..=0x1fff => 0,
        0xc000_0000..=0xc000_1fff => 128,
        _ => return None,
    };
    let low = number & 0x1fff;
    let part = if is_write { 256 } else { 0 };
    Some((part + half + (low / 64) as usize, low % 64))
}

/// Whether L1 intercepts L2's access to an MSR. `word` reads L1's memory.
pub fn intercepts_msr(vmcs: &Vmcs12, number: u32, is_write: bool, word: impl FnOnce(u64) -> Option<u64>) -> bool {
    if vmcs.get32(Field::PRIMARY_CONTROLS) & primary::MSR_BITMAPS == 0 {
        return true;
    }
    let Some((index, bit)) = msr_bit(number, is_write) else { return true };
    word(vmcs.get(Field::MSR_BITMAP) | (8 * index as u64)).is_none_or(|word| word >> bit & 1 != 0)
}

/// Whether L1 intercepts L2's access to ports, by the exit qualification ("I/O-Bitmap Addresses", "Exit Qualification for I/O
/// Instructions"). `word` reads L1's memory.
pub fn intercepts_port(vmcs: &Vmcs12, qualification: u64, mut word: impl FnMut(u64) -> Option<u64>) -> bool {
    let controls = vmcs.get32(Field::PRIMARY_CONTROLS);
    if controls & primary::IO_BITMAPS == 0 {
        return controls & primary::UNCONDITIONAL_IO != 0;
    }
    let first = (qualification >> 16) as u16;
    let last_offset = (qualification & 0b11) as u16;
    // An access that wraps around the port space exits.
    let Some(last) = first.checked_add(last_offset) else { return true };
    (first..=last).any(|port| {
        let bitmap = if port < 0x8000 { Field::IO_BITMAP_A } else { Field::IO_BITMAP_B };
        let bit = u64::from(port & 0x7fff);
        word(vmcs.get(bitmap) | (bit / 64 * 8)).is_none_or(|word| word >> (bit % 64) & 1 != 0)
    })
}
