//! Snapshots of a VM: export of one that is paused, import into one that was created for it. Each call does a bounded
//! part.

use stile_paging::PAGE_SIZE;
use stile_paging::first_touch::{BLOCK_SIZE, Block};
use stile_paging::frames::Piece;
use stile_snapshot::pages::{self, Builder, Entry};

use super::Vm;
use super::power_state::State;
use crate::arch::Arch;
use crate::arch::contract::{Host, Snapshots};

/// Number of pages that one call of [`Vm::save_memory`] reads at most, at a thousand instructions each.
const READ_AT_ONCE: u64 = 128;
/// Number of blocks that it passes over at most.
const PASSED_AT_ONCE: u64 = 1024;

const NOT_PAUSED: &str = "the VM is not paused";
const NOT_RESTORED: &str = "the VM is not being restored";
const NO_PART: &str = "the VM has no such part";
const NO_RAM: &str = "the snapshot has pages where the VM has no RAM";

const _: () = assert!(pages::PAGE as u64 == PAGE_SIZE && pages::BLOCK_SIZE == BLOCK_SIZE);
const _: () = assert!(pages::WINDOW as u64 <= Arch::COPIED_AT_ONCE);

impl Vm {
    /// Exports a part of its state. Returns the part's length, and whether there are more parts.
    ///
    /// # Errors
    /// The VM is not paused, or can't be saved.
    pub fn save_state(&'static self, part: usize, to: &mut [u8]) -> Result<(usize, bool), &'static str> {
        // Locked during the call: nothing resumes the VM.
        let state = self.power.state.lock();
        let State::Paused(since) = *state else { return Err(NOT_PAUSED) };
        if let Some(why) = Arch::obstacle(self) {
            return Err(why);
        }
        if self.techniques.ablate.is_some() {
            return Err("a VM with `ablate` can't be saved");
        }
        let length = Arch::save(self, part, since, to).ok_or(NO_PART)?;
        Ok((length, part + 1 < Arch::parts(self)))
    }

    /// Exports a piece of its RAM, from an address on (crate `snapshot`). Returns the piece's length, and the address at
    /// which the next one begins.
    ///
    /// # Errors
    /// The VM is not paused.
    pub fn save_memory(&self, from: u64, to: &mut [u8]) -> Result<(usize, Option<u64>), &'static str> {
        let state = self.power.state.lock();
        let State::Paused(_) = *state else { return Err(NOT_PAUSED) };
        let end = self.ram.base + self.ram.blocks.len() as u64 * BLOCK_SIZE;
        let mut at = from.max(self.ram.base) & !(PAGE_SIZE - 1);
        let (mut builder, mut read, mut passed) = (Builder::new(), 0, 0);
        while at < end && builder.has_room() && read < READ_AT_ONCE && passed < PASSED_AT_ONCE {
            let full = self.ram.block(at).is_some_and(Block::is_full);
            if !full && self.ram.block(at).is_some_and(|block| !block.is_untouched()) && self.touch(at) {
                // Stile's own accesses, or a reset, left a block that is filled in part: fill the rest first.
                break;
            }
            if !full {
                at = (at & !(BLOCK_SIZE - 1)) + BLOCK_SIZE;
                passed += 1;
                continue;
            }
            if at.is_multiple_of(BLOCK_SIZE) {
                builder.block(to, at);
            }
            for part in self.ram.parts(at, at + PAGE_SIZE) {
                // SAFETY: the page is in this VM's RAM, in the direct map. None of its vCPUs runs, as its power state is locked, and a VM
                // with functions is not saved.
                let page: &[u8; pages::PAGE] = unsafe { &*Arch::physical(part.pa).cast() };
                if !is_zero(page) {
                    let offset = builder.page(to, at);
                    to[offset..offset + pages::PAGE].copy_from_slice(page);
                }
            }
            at += PAGE_SIZE;
            read += 1;
        }
        Ok((builder.finish(to), (at < end).then_some(at)))
    }

    /// Imports a part of its state: untrusted input.
    ///
    /// # Errors
    /// The VM is not being restored, or the part is not of a VM like this one.
    pub fn restore_state(&'static self, part: usize, from: &[u8]) -> Result<(), &'static str> {
        let state = self.power.state.lock();
        let State::Restoring(since) = *state else { return Err(NOT_RESTORED) };
        if let Some(why) = Arch::obstacle(self) {
            return Err(why);
        }
        if part >= Arch::parts(self) {
            return Err(NO_PART);
        }
        Arch::restore(self, part, since, from)
    }

    /// Imports entries of a piece of RAM, untrusted input, from the entry number `first` on. Returns the number of entries
    /// that are restored, and whether these are all.
    ///
    /// # Errors
    /// The VM is not being restored, or has no RAM there.
    pub fn restore_memory(&self, first: usize, piece: &[u8]) -> Result<(usize, bool), &'static str> {
        let state = self.power.state.lock();
        let State::Restoring(_) = *state else { return Err(NOT_RESTORED) };
        let mut done = first;
        for entry in pages::entries(piece, piece.len()).skip(first) {
            match entry {
                Entry::Block(address) => {
                    if !self.ram.contains(address) {
                        return Err(NO_RAM);
                    }
                    if !self.is_full(address) {
                        // One step.
                        self.touch(address);
                        return Ok((done, false));
                    }
                    done += 1;
                    if self.ram.has_files(address) {
                        // Pages that are not in the snapshot are zero.
                        for part in self.ram.parts(address, address + BLOCK_SIZE) {
                            // SAFETY: the part is in this VM's RAM, in the direct map, and no vCPU of the VM runs.
                            unsafe { Arch::zero(Arch::physical(part.pa), part.size as usize) };
                        }
                        return Ok((done, false));
                    }
                }
                Entry::Page(address, offset) => {
                    let mut parts = self.ram.parts(address, address + PAGE_SIZE);
                    let Some(Piece { pa, size: PAGE_SIZE, .. }) = parts.next().filter(|_| self.is_full(address)) else {
                        return Err(NO_RAM);
                    };
                    let page = piece.get(offset..offset + pages::PAGE).ok_or(NO_RAM)?;
                    // SAFETY: the page is in this VM's RAM, in the direct map, and no vCPU of the VM runs; the window is elsewhere.
                    unsafe { Arch::copy(Arch::physical(pa), page.as_ptr(), pages::PAGE) };
                    done += 1;
                }
            }
        }
        Ok((done, true))
    }
}

/// Whether a page is zero.
fn is_zero(page: &[u8; pages::PAGE]) -> bool {
    let (words, _) = page.as_chunks::<64>();
    words.iter().all(|line| line.as_chunks::<8>().0.iter().fold(0, |sum, word| sum | u64::from_ne_bytes(*word)) == 0)
}
