//! Snapshots of a VM: export of one that is paused, or of its RAM while it runs, import into one that was created for it.
//! Each call does a bounded part.

use core::sync::atomic::Ordering;

use stile_paging::PAGE_SIZE;
use stile_paging::changes::Pages;
use stile_paging::first_touch::{BLOCK_SIZE, Block};
use stile_paging::frames::Piece;
use stile_snapshot::pages::{self, Builder, Entry};
use stile_wire::Scope;

use super::Vm;
use super::power_state::State;
use crate::arch::Arch;
use crate::arch::contract::{Counter, Host, Platform, Snapshots};

/// Instructions, roughly, after which [`Vm::save_memory`] ends.
const SAVED_AT_ONCE: usize = 110_000;
/// Instructions to read a page.
const READ: usize = 1_000;
/// Instructions to skip a block.
const PASSED: usize = 120;
/// Number of vCPUs that one call of [`Vm::save_state`] prepares at most.
const PREPARED_AT_ONCE: usize = 8;

const NOT_PAUSED: &str = "the VM is not paused";
const NOT_RESTORED: &str = "the VM is not being restored";
const NO_PART: &str = "the VM has no such part";
const NO_RAM: &str = "the snapshot has pages where the VM has no RAM";

const _: () = assert!(pages::PAGE as u64 == PAGE_SIZE && pages::BLOCK_SIZE == BLOCK_SIZE);
const _: () = assert!(pages::WINDOW as u64 <= Arch::COPIED_AT_ONCE);

impl Vm {
    /// Exports a part of its state. Returns the part's length, and the number of the next part: with length 0 it is the
    /// same one.
    ///
    /// # Errors
    /// The VM is not paused, or can't be saved.
    pub fn save_state(&'static self, part: usize, to: &mut [u8]) -> Result<(usize, Option<usize>), &'static str> {
        // Locked during the call: nothing resumes the VM.
        let state = self.power.state.lock();
        let State::Paused(since) = *state else { return Err(NOT_PAUSED) };
        self.check_savable()?;
        if part == 0 {
            if self.power.saved_pause.swap(since, Ordering::Relaxed) != since {
                self.power.prepared.store(0, Ordering::Relaxed);
            }
            if !self.prepare() {
                return Ok((0, Some(part)));
            }
        }
        self.check_pause(since)?;
        if !self.is_prepared() {
            return Err("the snapshot's first part was not saved");
        }
        let length = Arch::save(self, part, since, to).ok_or(NO_PART)?;
        Ok((length, Some(part + 1).filter(|&next| next < Arch::parts(self))))
    }

    /// Prepares some vCPUs for a snapshot. Returns whether all are prepared.
    fn prepare(&'static self) -> bool {
        let (all, done) = (self.vcpus.len(), self.power.prepared.load(Ordering::Relaxed));
        if !self.is_prepared() {
            let first = done % all;
            let next = all.min(first + PREPARED_AT_ONCE);
            Arch::prepare(self, first..next);
            self.power.prepared.store(done + next - first, Ordering::Relaxed);
        }
        self.is_prepared()
    }

    /// Whether all vCPUs are prepared.
    fn is_prepared(&self) -> bool {
        // Twice each: state that leaves one may reach others.
        !Arch::PREPARES || self.power.prepared.load(Ordering::Relaxed) >= 2 * self.vcpus.len()
    }

    /// Exports a piece of its RAM, from an address on (crate `snapshot`). Returns the piece's length, and the address at
    /// which the next one begins.
    ///
    /// # Errors
    /// The VM is not paused, or is not on for a scope that permits that.
    pub fn save_memory(&self, from: u64, scope: Scope, to: &mut [u8]) -> Result<(usize, Option<u64>), &'static str> {
        let state = self.power.state.lock();
        match (&*state, scope) {
            (State::Paused(since), Scope::All | Scope::Rest) => self.check_pause(*since)?,
            (State::Paused(_) | State::On, Scope::First | Scope::Changed) => {}
            _ => return Err(NOT_PAUSED),
        }
        let end = self.ram.base + self.ram.blocks.len() as u64 * BLOCK_SIZE;
        let mut at = from.max(self.ram.base) & !(PAGE_SIZE - 1);
        let (mut builder, mut work) = (Builder::new(), 0);
        while at < end && builder.has_room() && work < SAVED_AT_ONCE {
            let Some((block, changes)) = self.ram.block_and_changes(at) else { break };
            let start = at & !(BLOCK_SIZE - 1);
            let Some(offset) = wanted(block, scope).and_then(|pages| changes.next(at - start, pages)) else {
                let is_part = matches!(scope, Scope::All | Scope::Rest) && !block.is_filled() && !block.is_untouched();
                if is_part && self.touch(at) {
                    // Stile's own accesses, or a reset, left a block that is filled in part: fill the rest first.
                    break;
                }
                at = start + BLOCK_SIZE;
                work += PASSED;
                continue;
            };
            at = start + offset;
            if scope == Scope::All && offset == 0 {
                builder.block(to, at);
            }
            if matches!(scope, Scope::First | Scope::Changed) {
                // Before it is read: see `stile_paging::changes`.
                changes.take(at);
            }
            for part in self.ram.parts(at, at + PAGE_SIZE) {
                let page = Arch::physical(part.pa).cast_const();
                if is_zero(page) {
                    if scope != Scope::All {
                        builder.zero(to, at);
                    }
                    continue;
                }
                let offset = builder.page(to, at);
                if let Some(place) = to.get_mut(offset..offset + pages::PAGE) {
                    // SAFETY: the page is in this VM's RAM, in the direct map, and stays there: the power state is locked. `place` is
                    // in the window. vCPUs may write to the page meanwhile, which then is saved again.
                    unsafe { core::ptr::copy_nonoverlapping(page, place.as_mut_ptr(), pages::PAGE) };
                }
            }
            at += PAGE_SIZE;
            work += READ;
        }
        Ok((builder.finish(to), (at < end).then_some(at)))
    }

    /// Begins to track, from an address on, which pages of RAM the VM writes. Returns the number of pages that it wrote since the
    /// last time, and the address from which to go on.
    ///
    /// # Errors
    /// The VM is not paused, or can't be saved.
    pub fn collect(&'static self, from: u64) -> Result<(u32, Option<u64>), &'static str> {
        let state = self.power.state.lock();
        let State::Paused(_) = *state else { return Err(NOT_PAUSED) };
        self.check_savable()?;
        let collected = self.track(from);
        Arch::forget_translations(self);
        Ok(collected)
    }

    /// # Errors
    /// The VM can't be saved.
    fn check_savable(&'static self) -> Result<(), &'static str> {
        if let Some(why) = Arch::obstacle(self) {
            return Err(why);
        }
        if self.techniques.ablate.is_some() {
            return Err("a VM with `ablate` can't be saved");
        }
        debug_assert!(!self.power.has_errand(), "a pause begins after a reset, which makes devices and vCPUs those of its new life");
        Ok(())
    }

    /// # Errors
    /// This pause, which began at `since`, is not the one of the snapshot's first part.
    fn check_pause(&self, since: u64) -> Result<(), &'static str> {
        let first = self.power.saved_pause.load(Ordering::Relaxed);
        if first == since { Ok(()) } else { Err("the VM has run since the snapshot's first part: save it again") }
    }

    /// Imports a part of its state: untrusted input. The VM's clocks continue from the first part on.
    ///
    /// # Errors
    /// The VM is not being restored, or the part is not of a VM like this one.
    pub fn restore_state(&'static self, part: usize, from: &[u8]) -> Result<(), &'static str> {
        let mut state = self.power.state.lock();
        let State::Restoring(begun) = &mut *state else { return Err(NOT_RESTORED) };
        if part == 0 {
            // Its RAM may have been copied before, while the VM ran elsewhere.
            *begun = Arch::now();
        }
        let since = *begun;
        if let Some(why) = Arch::obstacle(self) {
            return Err(why);
        }
        if part >= Arch::parts(self) {
            return Err(NO_PART);
        }
        Arch::restore(self, part, since, from)
    }

    /// Imports entries of a piece of RAM, untrusted input, from the entry number `first` on: at most [`pages::PAGES`] pages.
    /// Returns the number of entries that are restored, and whether these are all.
    ///
    /// # Errors
    /// The VM is not being restored, or has no RAM there.
    pub fn restore_memory(&self, first: usize, piece: &[u8]) -> Result<(usize, bool), &'static str> {
        let state = self.power.state.lock();
        let State::Restoring(_) = *state else { return Err(NOT_RESTORED) };
        let (mut done, mut pages_done) = (first, 0);
        for entry in pages::entries(piece, piece.len()).skip(first) {
            if pages_done == pages::PAGES {
                return Ok((done, false));
            }
            match entry {
                Entry::Block(address) => {
                    if !self.ram.contains(address) {
                        return Err(NO_RAM);
                    }
                    if !self.is_writable(address) {
                        // One step.
                        self.touch(address);
                        return Ok((done, false));
                    }
                    if self.ram.has_files(address) {
                        // Pages that are not in the snapshot are zero.
                        let is_clear = self.clear_block(address & !(BLOCK_SIZE - 1));
                        return Ok((done + usize::from(is_clear), false));
                    }
                    done += 1;
                }
                Entry::Page(address, offset) => {
                    let to = self.page(address).ok_or(NO_RAM)?;
                    let page = piece.get(offset..offset + pages::PAGE).ok_or(NO_RAM)?;
                    // SAFETY: the page is in this VM's RAM, in the direct map, and no vCPU of the VM runs; the window is elsewhere.
                    unsafe { Arch::copy(to, page.as_ptr(), pages::PAGE) };
                    (done, pages_done) = (done + 1, pages_done + 1);
                }
                Entry::Zero(address) => {
                    let to = self.page(address).ok_or(NO_RAM)?;
                    // SAFETY: the page is in this VM's RAM, in the direct map, and no vCPU of the VM runs.
                    unsafe { Arch::zero(to, pages::PAGE) };
                    (done, pages_done) = (done + 1, pages_done + 1);
                }
            }
        }
        Ok((done, true))
    }

    /// A page of a writable block.
    fn page(&self, address: u64) -> Option<*mut u8> {
        let mut parts = self.ram.parts(address, address.saturating_add(PAGE_SIZE));
        let Piece { pa, .. } = parts.next().filter(|part| part.size == PAGE_SIZE && self.is_writable(address))?;
        Some(Arch::physical(pa))
    }

    /// Clears a bounded part of a block of a VM that is being restored, which is locked. Returns whether all of it is clear.
    fn clear_block(&self, block: u64) -> bool {
        let at = Some(self.ram.restored.load(Ordering::Relaxed)).filter(|at| (block..block + BLOCK_SIZE).contains(at)).unwrap_or(block);
        let end = at + Arch::ZEROED_AT_ONCE;
        for part in self.ram.parts(at, end) {
            // SAFETY: the part is in this VM's RAM, in the direct map, and no vCPU of the VM runs.
            unsafe { Arch::zero(Arch::physical(part.pa), part.size as usize) };
        }
        self.ram.restored.store(end, Ordering::Relaxed);
        end == block + BLOCK_SIZE
    }
}

/// The pages of a block that a scope has.
fn wanted(block: &Block, scope: Scope) -> Option<Pages> {
    match scope {
        Scope::All => block.is_filled().then_some(Pages::All),
        Scope::First => block.is_tracked().then_some(Pages::All),
        Scope::Changed => block.is_tracked().then_some(Pages::Pending),
        Scope::Rest if block.is_writable() => Some(Pages::All),
        Scope::Rest => block.is_tracked().then_some(Pages::Rest),
    }
}

/// Whether a page of a VM's RAM, which vCPUs may write to, is zero.
fn is_zero(page: *const u8) -> bool {
    let words = page.cast::<u64>();
    // SAFETY: the caller's page is in a VM's RAM, in the direct map, and aligned; volatile reads permit concurrent writes.
    (0..pages::PAGE / 8)
        .step_by(8)
        .all(|first| (first..first + 8).fold(0, |sum, word| sum | unsafe { words.add(word).read_volatile() }) == 0)
}
