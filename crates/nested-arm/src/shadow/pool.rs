//! The shadows of one VM.
//!
//! Every operation is bounded for any tables of L1: a table removed from a shadow goes to the
//! [reserve](super::reserve) whole; an unused shadow is only marked, and emptied at its next use; and of the
//! shadows affected by maintenance by address, only [`PRECISE`] are changed by address, and only for up to
//! [`PRECISE_BYTES`].

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

/// Number of extents in a shadow's reverse map.
const EXTENTS: usize = 32;

/// Number of shadows that one TLBI by address changes by address; further affected ones are emptied. L1 has
/// one per VMID, unless it uses a VMID for several tables.
const PRECISE: usize = 2;
/// Maximum number of bytes of a shadow to walk for maintenance by address.
const PRECISE_BYTES: u64 = 32 << 20;

/// TLB maintenance for shadows, each with its own VMID.
pub trait Tlb: Maintenance {
    /// Selects the shadow, by VMID and root, to which following maintenance applies. It may be in use on any
    /// CPU, or on none.
    fn select(&mut self, vmid: &VmidSlot, root: u64);
}

/// A shadow's number in its [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextId(u8);

/// One shadow.
#[derive(Debug)]
pub struct Context {
    /// The L1 second stage that it shadows; `None` if unused.
    key: Option<Stage2>,
    vmid: VmidSlot,
    table: PageTable<Shadow>,
    /// Nothing has been mapped since it was emptied.
    is_empty: bool,
    extents: Extents<EXTENTS>,
    /// Sizes (as log2) of L1 pages and blocks that may be only partly in the shadow.
    split: u64,
    /// Number of vCPUs that have it loaded.
    users: u32,
    /// Time of its last acquisition.
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

    /// Detaches it from its second stage. No vCPU has it loaded, so its VMID is not in use and its TLB
    /// entries are never used again. Its mappings are removed before its next use.
    fn abandon(&mut self) {
        self.vmid.forget();
        self.key = None;
    }

    /// Unmaps a range, clipped to the shadow's input size; or everything, if the range is large.
    fn unmap<M: Frames, T: Maintenance>(&mut self, tables: &mut Tables<'_, M>, tlb: &mut T, start: u64, end: u64) {
        let limit = 1 << self.table.geometry().input_bits();
        let start = start & !(PAGE_SIZE - 1);
        let end = end.checked_next_multiple_of(PAGE_SIZE).map_or(limit, |end| end.min(limit));
        if start >= end {
            return;
        }
        // Allocation is needed only to split a block, which never happens for whole L1 entries.
        if end - start > PRECISE_BYTES || self.table.unmap(tables, tlb, start, end - start).is_err() {
            self.clear(tables, tlb);
        }
    }

    /// The L1 page or block around `ipa` of which the shadow has, or may have, parts: start and end. If
    /// unknown, the largest possible one.
    fn around<M: Frames>(&self, frames: &M, ipa: u64) -> (u64, u64) {
        let shift = match self.table.translate(frames, ipa) {
            Ok(found) => found.attributes.permissions.leaf.shift(),
            Err(_) => self.split.checked_ilog2().unwrap_or(PAGE_SIZE.trailing_zeros()),
        };
        let start = ipa & !((1 << shift) - 1);
        (start, start.saturating_add(1 << shift))
    }
}

/// The shadows of one VM: at most `N`, no fewer than its vCPUs. Protected by one lock.
#[derive(Debug)]
pub struct Pool<const N: usize> {
    contexts: [Context; N],
    reserve: Reserve,
    clock: u64,
}

impl<const N: usize> Pool<N> {
    /// Creates a pool of unused shadows. Each takes one of the `roots`: zeroed memory of
    /// [`Geometry::root_size`] bytes, aligned to that. Tables are allocated from the frames `reserved` for
    /// this VM, of arbitrary contents: whole pages, more than four.
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
            // Validated above.
            table: PageTable::new(format, geometry, root).unwrap_or_else(|_| unreachable!("a root that was valid before")),
            is_empty: true,
            extents: Extents::new(),
            split: 0,
            users: 0,
            acquired: 0,
        });
        Ok(Self { contexts, reserve: Reserve::new(reserved), clock: 0 })
    }

    /// Acquires the shadow of `stage2` for a vCPU about to run L2: the existing one, or an empty one, for
    /// which the least recently used unloaded shadow is recycled. `None` if vCPUs have all of them loaded.
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

    /// Recycles the least recently used shadow that is not loaded.
    fn recycle<M: Frames>(&mut self, frames: &mut M) -> Option<usize> {
        let unused = self.contexts.iter().enumerate().filter(|(_, context)| context.users == 0);
        let (at, _) = unused.min_by_key(|(_, context)| (context.key.is_some(), context.acquired))?;
        let context = self.contexts.get_mut(at)?;
        context.abandon();
        context.clear(&mut Tables { frames, reserve: &mut self.reserve }, &mut Quiet);
        Some(at)
    }

    /// Empties the least recently used shadow other than `own`, or else `own`. Returns whether it had any
    /// mapping.
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

    /// Releases a shadow after the vCPU stopped using it: its CPU's VTTBR_EL2 must hold another value.
    pub fn release(&mut self, id: ContextId) {
        if let Some(context) = self.contexts.get_mut(usize::from(id.0)) {
            context.users = context.users.saturating_sub(1);
        }
    }

    /// A shadow that was [acquired](Self::acquire).
    pub fn context(&self, id: ContextId) -> Option<&Context> {
        self.contexts.get(usize::from(id.0))
    }

    /// Maps a range, replacing existing mappings. The caller executes `DSB ISHST` before L2 runs again, and
    /// selects the shadow again.
    ///
    /// If the reserve is exhausted, other shadows are emptied first, and this one last.
    ///
    /// # Errors
    /// Those of a mapping that doesn't fit the shadow's geometry, or [`Error::OutOfMemory`] if the reserve is
    /// too small for any mapping: L2 can't continue.
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

    /// Handles L1's invalidation of TLB entries of its `vmid`: removes the affected mappings from the shadows
    /// of this VMID (for [`Scope::All`], from all). First-stage invalidation doesn't affect shadows; the
    /// caller does it in hardware, for each of [`with_vmid`](Self::with_vmid).
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

    /// Removes the `size` bytes at L1 physical address `l1` from all shadows, because L0 unmaps them or
    /// reduces their permissions.
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

    /// Empties and detaches all shadows. None is loaded: the VM has ended, or is being reset.
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

/// Maintenance that is skipped because a wider invalidation follows, or none is needed.
struct Quiet;

impl Maintenance for Quiet {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}
