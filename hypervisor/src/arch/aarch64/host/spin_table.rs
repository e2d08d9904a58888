//! Start of CPUs by their spin tables (Devicetree Specification, "cpu-release-addr"; Linux arm64 boot protocol): each waits,
//! by WFE and with its caches off, until a word of memory holds the address of its first instruction.

use super::bulk;
use super::probe::{self, Probed};
use crate::address_space::{self, Span};

/// Size of a release address, in bytes.
const WORD: u64 = 8;

/// Starts a CPU at the physical address `entry`. `ram` is the board's, and `used` what Stile's image occupies of it.
///
/// # Errors
/// The release address is in Stile's image, or does not answer.
pub fn start(release: u64, entry: u64, ram: &[Span], used: &Span) -> Result<(), &'static str> {
    if used.contains(&release) {
        return Err("its cpu-release-addr is in Stile's image");
    }
    let word = if ram.iter().any(|ram| ram.contains(&release)) {
        address_space::physical(release)
    } else {
        let word = release..release.checked_add(WORD).ok_or("its cpu-release-addr is no address")?;
        let word = probe::map(&word, &[], WORD, Probed { at: 0, wide: true }).map_err(|_| "its cpu-release-addr does not answer")?;
        word.base() as *mut u8
    };
    // SAFETY: the word was just found to be mapped, is aligned by `nodes::spin_table`, and is in no memory that Stile
    // uses: the board reserves its page, and it is outside the image.
    unsafe { word.cast::<u64>().write_volatile(entry) };
    bulk::flush(word as u64, WORD as usize);
    // SAFETY: an event wakes CPUs, and changes neither memory nor a register that the compiler uses.
    unsafe { core::arch::asm!("sev", options(nomem, nostack, preserves_flags)) };
    Ok(())
}
