//! The shadows of one VM.
//!
//! Nothing here takes long, whatever L1 has made: a table that leaves a shadow goes to the [reserve](super::reserve) whole; a shadow that no
//! vCPU has is only marked, and emptied by whoever uses it next; and of the shadows that maintenance by address concerns, only
//! [`PRECISE`] are changed by address, and only for [`PRECISE_BYTES`].

use super::extents::Extents;
use super::format::{Shadow, ShadowPermissions};
use super::reserve::{Frames, Reserve, Tables};
use super::resolve::Mapping;
use super::stage2::Stage2;
use crate::tlbi::Scope;
use core::ops::Range;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{self, Error, Geometry, Invalidation, Maintenance, PageTable};
use stile_paging::vmid::VmidSlot;

/// Ranges of L1's memory that the reverse map of one shadow tells apart.
const EXTENTS: usize = 32;

/// Shadows that one TLBI by address changes by address; what else it concerns is emptied. L1 has one for each VMID, unless it uses one VMID
/// for several tables.
const PRECISE: usize = 2;
/// The most bytes of a shadow that are looked through for maintenance by address.
const PRECISE_BYTES: u64 = 32 << 20;

/// TLB maintenance for shadows, which have a VMID each.
pub trait Tlb: Maintenance {
    /// What follows concerns the shadow that has this VMID and this root. It may be in use on any CPU, or on none.
    fn select(&mut self, vmid: &VmidSlot, root: u64);
}

/// A shadow's number in its [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextId(u8);

/// One shadow.
#[derive(Debug)]
pub struct Context {
    /// The second stage of L1's that it shadows; none yet if it isn't in use.
    key: Option<Stage2>,
    vmid: VmidSlot,
    table: PageTable<Shadow>,
    /// Nothing has been mapped since it was emptied.
    is_empty: bool,
    extents: Extents<EXTENTS>,
    /// Sizes (as log2) of L1's pages and blocks of which only a part may be in the shadow.
    split: u64,
    /// vCPUs that have it loaded.
    users: u32,
    /// When it was last acquired.
    acquired: u64,
}

impl Context {
    /// Its VMID.
    pub const fn vmid(&self) -> &VmidSlot {
        &self.vmid
    }

    /// Its table, for VTTBR_EL2 and for lookups.
    pub const fn table(&self) -> &PageTable<Shadow> {
        &self.table
    }

    /// Unmaps everything.
    fn clear<M: Frames, T: Maintenance>(&mut self, tables: &mut Tables<'_, M>, tlb: &mut T) {
        if self.is_empty {
            return;
        }
        let geometry = self.table.geometry();
        if !tables.take_entries(self.table.root(), geometry.root_size(), geometry.start(), tlb) {
            self.table.clear(tables, tlb);
        }
        self.is_empty = true;
        self.extents.clear();
        self.split = 0;
    }

    /// Makes it one of nothing. No vCPU has it, so no CPU has its VMID, and none will: what TLBs have of it is never looked at again. What is
    /// mapped in it goes before it is used again.
    fn abandon(&mut self) {
        self.vmid.forget();
        self.key = None;
    }

    /// Unmaps a range, cut to what a shadow can have; or everything, if the range is large.
    fn unmap<M: Frames, T: Maintenance>(&mut self, tables: &mut Tables<'_, M>, tlb: &mut T, start: u64, end: u64) {
        let limit = 1 << self.table.geometry().input_bits();
        let start = start & !(PAGE_SIZE - 1);
        let end = end.checked_next_multiple_of(PAGE_SIZE).map_or(limit, |end| end.min(limit));
        if start >= end {
            return;
        }
        // Memory is short only where a block must be split, which a whole entry of L1's never asks for.
        if end - start > PRECISE_BYTES || self.table.unmap(tables, tlb, start, end - start).is_err() {
            self.clear(tables, tlb);
        }
    }

    /// The page or block of L1's around `ipa`, as far as the shadow has, or may have, parts of it: first address and
    /// end. Where the shadow doesn't know, it is the largest that it could be.
    fn around<M: Frames>(&self, frames: &M, ipa: u64) -> (u64, u64) {
        let shift = match self.table.translate(frames, ipa) {
            Ok(found) => found.attributes.permissions.leaf.shift(),
            Err(_) => self.split.checked_ilog2().unwrap_or(PAGE_SIZE.trailing_zeros()),
        };
        let start = ipa & !((1 << shift) - 1);
        (start, start.saturating_add(1 << shift))
    }
}

/// The shadows of one VM: `N` at most, which must be no fewer than its vCPUs. Behind one lock.
#[derive(Debug)]
pub struct Pool<const N: usize> {
    contexts: [Context; N],
    reserve: Reserve,
    clock: u64,
}

impl<const N: usize> Pool<N> {
    /// No shadow in use. Each has one of the `roots`: zeroed memory of [`Geometry::root_size`] bytes, aligned to that. Their tables are made of
    /// the frames `reserved` for this VM, of any content: whole pages, and more than four.
    ///
    /// # Errors
    /// Those of [`PageTable::new`].
    pub fn new(format: Shadow, geometry: Geometry, roots: [u64; N], reserved: Range<u64>) -> Result<Self, Error> {
        for root in roots {
            PageTable::new(format, geometry, root)?;
        }
        let contexts = roots.map(|root| Context {
            key: None,
            vmid: VmidSlot::default(),
            // Looked at above.
            table: PageTable::new(format, geometry, root).unwrap_or_else(|_| unreachable!("a root that was valid before")),
            is_empty: true,
            extents: Extents::new(),
            split: 0,
            users: 0,
            acquired: 0,
        });
        Ok(Self { contexts, reserve: Reserve::new(reserved), clock: 0 })
    }

    /// The shadow of `stage2` for a vCPU that is about to run L2 in it: the one there is, or an empty one, for which the one
    /// goes that no vCPU has had for the longest time. `None` if vCPUs have all of them.
    pub fn acquire<M: Frames>(&mut self, frames: &mut M, stage2: &Stage2) -> Option<ContextId> {
        self.clock += 1;
        let at = match self.contexts.iter().position(|context| context.key == Some(*stage2)) {
            Some(at) => at,
            None => self.recycle(frames)?,
        };
        let context = self.contexts.get_mut(at)?;
        context.key = Some(*stage2);
        context.users += 1;
        context.acquired = self.clock;
        Some(ContextId(at as u8))
    }

    /// Empties the shadow that is missed the least.
    fn recycle<M: Frames>(&mut self, frames: &mut M) -> Option<usize> {
        let unused = self.contexts.iter().enumerate().filter(|(_, context)| context.users == 0);
        let (at, _) = unused.min_by_key(|(_, context)| (context.key.is_some(), context.acquired))?;
        let context = self.contexts.get_mut(at)?;
        context.abandon();
        context.clear(&mut Tables { frames, reserve: &mut self.reserve }, &mut Quiet);
        Some(at)
    }

    /// Empties the shadow other than `own` that is missed the least, or that one. Returns whether there was anything in it.
    fn evict<M: Frames, T: Tlb>(&mut self, own: usize, frames: &mut M, tlb: &mut T) -> bool {
        let full = self.contexts.iter_mut().enumerate().filter(|(_, context)| !context.is_empty);
        let victim = full.min_by_key(|(at, context)| (*at == own, context.users != 0, context.key.is_some(), context.acquired));
        let Some((_, context)) = victim else { return false };
        let tables = &mut Tables { frames, reserve: &mut self.reserve };
        if context.users == 0 {
            context.abandon();
            context.clear(tables, &mut Quiet);
        } else {
            tlb.select(&context.vmid, context.table.root());
            context.clear(tables, tlb);
        }
        true
    }

    /// The vCPU doesn't run in it any more: its CPU's VTTBR_EL2 is another by now.
    pub fn release(&mut self, id: ContextId) {
        if let Some(context) = self.contexts.get_mut(usize::from(id.0)) {
            context.users = context.users.saturating_sub(1);
        }
    }

    /// A shadow that was [acquired](Self::acquire).
    pub fn context(&self, id: ContextId) -> Option<&Context> {
        self.contexts.get(usize::from(id.0))
    }

    /// Puts a mapping in the place of what was there. The caller has a `DSB ISHST` done before L2 runs again, and selects the shadow anew.
    ///
    /// If the reserve is used up, other shadows are emptied, and this one last.
    ///
    /// # Errors
    /// Those of a mapping that doesn't fit the shadow's geometry, or [`Error::OutOfMemory`] if the reserve is too small for any: L2 can't go
    /// on.
    pub fn map<M: Frames, T: Tlb>(&mut self, id: ContextId, frames: &mut M, tlb: &mut T, mapping: &Mapping) -> Result<(), Error> {
        let own = usize::from(id.0);
        while let Err(error) = self.try_map(own, frames, tlb, mapping) {
            if error != Error::OutOfMemory || !self.evict(own, frames, tlb) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn try_map<M: Frames, T: Tlb>(&mut self, at: usize, frames: &mut M, tlb: &mut T, mapping: &Mapping) -> Result<(), Error> {
        let Some(context) = self.contexts.get_mut(at) else {
            return Err(Error::InputRange);
        };
        let tables = &mut Tables { frames, reserve: &mut self.reserve };
        let shadow: table::Mapping<ShadowPermissions> = mapping.shadow;
        tlb.select(&context.vmid, context.table.root());
        let mut result = context.table.map(tables, shadow);
        if let Err(Error::AlreadyMapped(_)) = result {
            context.unmap(tables, tlb, shadow.address, shadow.address.saturating_add(shadow.size));
            result = context.table.map(tables, shadow);
        }
        result?;
        context.is_empty = false;
        let leaf = shadow.attributes.permissions.leaf.shift();
        if shadow.size < 1 << leaf {
            context.split |= 1 << leaf;
        }
        context.extents.add(mapping.l1, shadow.address, shadow.size);
        Ok(())
    }

    /// L1 has invalidated TLB entries of its `vmid`: what the shadows of this VMID (for [`Scope::All`], all shadows) have
    /// of it goes. What concerns the first stage alone is nothing to the shadows, and the caller's to do on the
    /// hardware, for each of [`with_vmid`](Self::with_vmid).
    pub fn invalidate<M: Frames, T: Tlb>(&mut self, frames: &mut M, tlb: &mut T, vmid: u16, scope: &Scope) {
        let mut precise = PRECISE;
        for context in &mut self.contexts {
            let Some(key) = context.key else { continue };
            let range = match *scope {
                Scope::All => None,
                Scope::VmidBoth if key.vmid() == vmid => None,
                Scope::Ipa { start, bytes, .. } if key.vmid() == vmid => {
                    let last = start.saturating_add(bytes.unwrap_or(1).saturating_sub(1));
                    Some((start, last)).filter(|_| precise > 0)
                }
                _ => continue,
            };
            if context.is_empty {
                continue;
            }
            let tables = &mut Tables { frames: &mut *frames, reserve: &mut self.reserve };
            match range {
                None if context.users == 0 => context.abandon(),
                None => {
                    tlb.select(&context.vmid, context.table.root());
                    context.clear(tables, tlb);
                }
                Some((start, last)) => {
                    precise -= 1;
                    tlb.select(&context.vmid, context.table.root());
                    let (first, _) = context.around(tables.frames, start);
                    let (_, end) = context.around(tables.frames, last);
                    context.unmap(tables, tlb, first, end);
                }
            }
        }
    }

    /// The shadows of L1's `vmid`.
    pub fn with_vmid(&self, vmid: u16) -> impl Iterator<Item = &Context> {
        self.contexts.iter().filter(move |context| context.key.is_some_and(|key| key.vmid() == vmid))
    }

    /// L0 takes the `size` bytes at L1's physical address `l1` away, or allows less: no shadow leads there any more.
    pub fn withdraw<M: Frames, T: Tlb>(&mut self, frames: &mut M, tlb: &mut T, l1: u64, size: u64) {
        for context in self.contexts.iter_mut().filter(|context| context.key.is_some()) {
            let tables = &mut Tables { frames: &mut *frames, reserve: &mut self.reserve };
            tlb.select(&context.vmid, context.table.root());
            match context.extents.find(l1, size) {
                None => context.clear(tables, tlb),
                Some(ranges) => {
                    for (start, size) in ranges {
                        context.unmap(tables, tlb, start, start + size);
                    }
                }
            }
        }
    }

    /// Empties all shadows, and forgets what they were of. No vCPU has any: the VM has ended, or starts anew.
    pub fn reset<M: Frames>(&mut self, frames: &mut M) {
        for context in &mut self.contexts {
            context.abandon();
            context.users = 0;
            if !context.is_empty {
                let root = context.table.root();
                for frame in (root..root + context.table.geometry().root_size()).step_by(PAGE_SIZE as usize) {
                    frames.zero(frame);
                }
                context.is_empty = true;
                context.extents.clear();
                context.split = 0;
            }
        }
        self.reserve.reset();
    }
}

/// Maintenance that nobody needs.
struct Quiet;

impl Maintenance for Quiet {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}
