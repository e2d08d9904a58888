//! The shadows of one VM.

use super::extents::Extents;
use super::format::{Shadow, ShadowPermissions};
use super::resolve::Mapping;
use super::stage2::Stage2;
use crate::tlbi::Scope;
use core::convert::Infallible;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{self, Error, Geometry, Invalidation, Maintenance, PageTable, TableMemory, TableRead};
use stile_paging::vmid::VmidSlot;

/// Ranges of L1's memory that the reverse map of one shadow tells apart.
const EXTENTS: usize = 32;

/// The most tables of one shadow, its root left out: 4 MiB of them. L1 decides how many addresses it gives to L2, so there must
/// be an end to it, and to how long it takes to empty a shadow. Enough for 2 GiB in single pages, and for 1 TiB in blocks.
const TABLES: u32 = 1024;

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
    /// Tables in use.
    tables: u32,
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

    /// Maps a range in which nothing is mapped.
    fn map<M: TableMemory>(&mut self, memory: &mut M, mapping: table::Mapping<ShadowPermissions>) -> Result<(), Error> {
        self.table.map(&mut Counted { memory, tables: &mut self.tables }, mapping)
    }

    /// Unmaps everything.
    fn clear<M: TableMemory, T: Maintenance>(&mut self, memory: &mut M, tlb: &mut T) {
        self.table.clear(&mut Counted { memory, tables: &mut self.tables }, tlb);
        self.extents.clear();
        self.split = 0;
    }

    /// Unmaps a range, cut to what a shadow can have.
    fn unmap<M: TableMemory, T: Maintenance>(&mut self, memory: &mut M, tlb: &mut T, start: u64, end: u64) {
        let limit = 1 << self.table.geometry().input_bits();
        let start = start & !(PAGE_SIZE - 1);
        let end = end.checked_next_multiple_of(PAGE_SIZE).map_or(limit, |end| end.min(limit));
        if start >= end {
            return;
        }
        // Memory is short only where a block must be split, which a whole entry of L1's never asks for.
        if self.table.unmap(&mut Counted { memory, tables: &mut self.tables }, tlb, start, end - start).is_err() {
            self.clear(memory, tlb);
        }
    }

    /// The page or block of L1's around `ipa`, as far as the shadow has, or may have, parts of it: first address and
    /// end. Where the shadow doesn't know, it is the largest that it could be.
    fn around<M: TableMemory>(&self, memory: &M, ipa: u64) -> (u64, u64) {
        let shift = match self.table.translate(memory, ipa) {
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
    clock: u64,
}

impl<const N: usize> Pool<N> {
    /// No shadow in use. Each has one of the `roots`: zeroed memory of [`Geometry::root_size`] bytes, aligned to that.
    ///
    /// # Errors
    /// Those of [`PageTable::new`].
    pub fn new(format: Shadow, geometry: Geometry, roots: [u64; N]) -> Result<Self, Error> {
        for root in roots {
            PageTable::new(format, geometry, root)?;
        }
        let contexts = roots.map(|root| Context {
            key: None,
            vmid: VmidSlot::default(),
            // Looked at above.
            table: PageTable::new(format, geometry, root).unwrap_or_else(|_| unreachable!("a root that was valid before")),
            tables: 0,
            extents: Extents::new(),
            split: 0,
            users: 0,
            acquired: 0,
        });
        Ok(Self { contexts, clock: 0 })
    }

    /// The shadow of `stage2` for a vCPU that is about to run L2 in it: the one there is, or an empty one, for which the one
    /// goes that no vCPU has had for the longest time. `None` if vCPUs have all of them.
    pub fn acquire<M: TableMemory>(&mut self, memory: &mut M, stage2: &Stage2) -> Option<ContextId> {
        self.clock += 1;
        let at = match self.contexts.iter().position(|context| context.key == Some(*stage2)) {
            Some(at) => at,
            None => self.recycle(memory)?,
        };
        let context = self.contexts.get_mut(at)?;
        context.key = Some(*stage2);
        context.users += 1;
        context.acquired = self.clock;
        Some(ContextId(at as u8))
    }

    /// Empties the shadow that is missed the least.
    fn recycle<M: TableMemory>(&mut self, memory: &mut M) -> Option<usize> {
        let unused = self.contexts.iter().enumerate().filter(|(_, context)| context.users == 0);
        let (at, _) = unused.min_by_key(|(_, context)| (context.key.is_some(), context.acquired))?;
        let context = self.contexts.get_mut(at)?;
        // No CPU has its VMID, and no CPU will: what TLBs have of it is never looked at again.
        context.vmid.forget();
        context.clear(memory, &mut Quiet);
        context.key = None;
        Some(at)
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

    /// Puts a mapping in the place of what was there. The caller has a `DSB ISHST` done before L2 runs again.
    ///
    /// If there is no memory for its tables, or it has 1024 already, the shadow is emptied: then there may be.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there isn't, and any other if a mapping doesn't fit the shadow's geometry. L2 can't go on.
    pub fn map<M: TableMemory, T: Tlb>(&mut self, id: ContextId, memory: &mut M, tlb: &mut T, mapping: &Mapping) -> Result<(), Error> {
        let Some(context) = self.contexts.get_mut(usize::from(id.0)) else {
            return Err(Error::InputRange);
        };
        let shadow = mapping.shadow;
        tlb.select(&context.vmid, context.table.root());
        let mut result = context.map(memory, shadow);
        if let Err(Error::AlreadyMapped(_)) = result {
            context.unmap(memory, tlb, shadow.address, shadow.address.saturating_add(shadow.size));
            result = context.map(memory, shadow);
        }
        if result == Err(Error::OutOfMemory) {
            context.clear(memory, tlb);
            result = context.map(memory, shadow);
        }
        result?;
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
    pub fn invalidate<M: TableMemory, T: Tlb>(&mut self, memory: &mut M, tlb: &mut T, vmid: u16, scope: &Scope) {
        for context in &mut self.contexts {
            let Some(key) = context.key else { continue };
            match *scope {
                Scope::All => {}
                Scope::VmidBoth | Scope::Ipa { .. } if key.vmid() == vmid => {}
                _ => continue,
            }
            tlb.select(&context.vmid, context.table.root());
            match *scope {
                Scope::Ipa { start, bytes, .. } => {
                    let last = start.saturating_add(bytes.unwrap_or(1).saturating_sub(1));
                    let (first, _) = context.around(memory, start);
                    let (_, end) = context.around(memory, last);
                    context.unmap(memory, tlb, first, end);
                }
                _ => context.clear(memory, tlb),
            }
        }
    }

    /// The shadows of L1's `vmid`.
    pub fn with_vmid(&self, vmid: u16) -> impl Iterator<Item = &Context> {
        self.contexts.iter().filter(move |context| context.key.is_some_and(|key| key.vmid() == vmid))
    }

    /// L0 takes the `size` bytes at L1's physical address `l1` away, or allows less: no shadow leads there any more.
    pub fn withdraw<M: TableMemory, T: Tlb>(&mut self, memory: &mut M, tlb: &mut T, l1: u64, size: u64) {
        for context in self.contexts.iter_mut().filter(|context| context.key.is_some()) {
            tlb.select(&context.vmid, context.table.root());
            match context.extents.find(l1, size) {
                None => context.clear(memory, tlb),
                Some(ranges) => {
                    for (start, size) in ranges {
                        context.unmap(memory, tlb, start, start + size);
                    }
                }
            }
        }
    }

    /// Empties all shadows, and forgets what they were of. No vCPU has any: the VM has ended, or starts anew.
    pub fn reset<M: TableMemory>(&mut self, memory: &mut M) {
        for context in &mut self.contexts {
            context.vmid.forget();
            context.clear(memory, &mut Quiet);
            context.key = None;
            context.users = 0;
        }
    }
}

/// Memory for the tables of one shadow, [`TABLES`] at most.
struct Counted<'a, M> {
    memory: &'a mut M,
    tables: &'a mut u32,
}

impl<M: TableMemory> TableRead for Counted<'_, M> {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        self.memory.read(table, index)
    }
}

impl<M: TableMemory> TableMemory for Counted<'_, M> {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        self.memory.write(table, index, descriptor);
    }

    fn allocate(&mut self) -> Option<u64> {
        if *self.tables >= TABLES {
            return None;
        }
        let table = self.memory.allocate()?;
        *self.tables += 1;
        Some(table)
    }

    fn free(&mut self, table: u64) {
        *self.tables = self.tables.saturating_sub(1);
        self.memory.free(table);
    }
}

/// Maintenance that nobody needs.
struct Quiet;

impl Maintenance for Quiet {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}
