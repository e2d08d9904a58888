//! The cache of decoded instructions of a VM whose scheme is *protect* (crate `stile-x86-decode`): the pages that its entries depend on are
//! write-protected in the second stage, and the guest's writes to them are handled here.

use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Invalidation, Maintenance, PageTable};
use stile_x86_decode::cache::{Counts, Protect, Protector};
use stile_x86_decode::{Code, Context, Decoded, Refusal};

use super::invalidations::Invalidations;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::virt::second_stage::{Format, Permissions};
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arena::Arena;
use crate::memory::TableFrames;

/// The cache, and the second stage in which it write-protects pages.
pub struct Protected {
    state: TicketLock<State>,
    invalidations: Invalidations,
}

struct State {
    cache: &'static mut Protect,
    table: Table,
    arena: &'static Arena,
}

/// The second stage. Its lock is taken inside of the cache's.
type Table = &'static TicketLock<PageTable<Format>>;

impl Protected {
    /// An empty cache over a VM's second stage, which `ept` points to.
    ///
    /// # Errors
    /// Memory is insufficient.
    pub fn new(table: Table, ept: u64, arena: &'static Arena) -> Result<Protected, &'static str> {
        let cache = arena.allocate::<Protect>()?.write(const { Protect::new() });
        Ok(Protected { state: TicketLock::new(State { cache, table, arena }), invalidations: Invalidations::new(ept) })
    }

    /// Returns the decoded form of the instruction at `code`, from the cache if possible.
    ///
    /// # Errors
    /// The decoder's refusal.
    pub fn find(&self, code: &Code<'_, Ram>) -> Result<Decoded, Refusal> {
        let State { cache, table, arena } = &mut *self.state.lock();
        cache.find(code, &mut WriteProtector { table, arena, invalidations: &self.invalidations }).copied()
    }

    /// Returns the instruction of 64-bit code at `rip` if it is cached.
    #[inline(always)]
    pub fn hit(&self, context: &Context, rip: u64) -> Option<Decoded> {
        self.state.lock().cache.hit(context, rip).copied()
    }

    /// Handles a write to a page of RAM, by Stile or by a guest that faulted: drops the entries that depend on the page, and makes it
    /// writable for the guest.
    pub fn written(&self, address: u64) {
        let page = address & !(PAGE_SIZE - 1);
        let State { cache, table, arena } = &mut *self.state.lock();
        // A page that is not mapped yet is mapped as writable.
        if is_writable(table, page).is_none_or(|writable| writable) {
            return;
        }
        cache.forget(page);
        // Granting a right needs no invalidation: a CPU with the stale entry faults once more, and looks it up again (the
        // manual, "Invalidating Cached Translation Information": an EPT violation invalidates what it used).
        // Without an entry of its own the page is in a block that is tracked (`vm/tracking.rs`). If memory for a table is missing, it
        // stays read-only: the guest's next write is tracked.
        let _ = table.lock().protect(arena, &mut Deferred, page, PAGE_SIZE, Permissions::ALL);
    }

    /// Drops the entries that depend on a page, and makes it writable by `permit`, which may take the second stage's lock. No other
    /// CPU finds an entry in between: it would be stale after a write.
    pub fn forget<R>(&self, page: u64, permit: impl FnOnce() -> R) -> R {
        let mut state = self.state.lock();
        state.cache.forget(page);
        permit()
    }

    /// Drops all entries, and makes their pages writable by `permit`, as [`forget`](Self::forget) does.
    pub fn clear<R>(&self, permit: impl FnOnce() -> R) -> R {
        let mut state = self.state.lock();
        state.cache.clear();
        permit()
    }

    /// Returns the cache's counters.
    pub fn counts(&self) -> Counts {
        self.state.lock().cache.counts()
    }

    /// Called when a vCPU of the VM is loaded on this CPU: applies the invalidations that the CPU missed, and subscribes it to new ones.
    pub fn load(&self, cpu: &Cpu) {
        self.invalidations.load(cpu.index);
    }

    /// Called when a vCPU of the VM is put: unsubscribes this CPU.
    pub fn put(&self, cpu: &Cpu) {
        self.invalidations.put(cpu.index);
    }

    /// Applies an invalidation that another CPU requested ([`apic::vector::INVALIDATE`]).
    pub fn catch_up(&self, cpu: &Cpu) {
        self.invalidations.catch_up(cpu.index);
    }
}

/// Write-protects pages in the second stage.
struct WriteProtector<'a> {
    table: Table,
    arena: &'static Arena,
    invalidations: &'a Invalidations,
}

impl Protector for WriteProtector<'_> {
    fn protect(&mut self, page: u64) -> bool {
        // No RAM, or not mapped yet: the guest's first touch would map it as writable.
        let Some(writable) = is_writable(self.table, page) else { return false };
        if writable {
            let permissions = Permissions { write: false, execute: true };
            if self.table.lock().protect(&mut { self.arena }, &mut Deferred, page, PAGE_SIZE, permissions).is_err() {
                return false;
            }
            self.invalidations.request();
        }
        self.invalidations.all_invalidated()
    }
}

/// Whether the guest may write to a page; `None` if the page is not mapped.
fn is_writable(table: &TicketLock<PageTable<Format>>, page: u64) -> Option<bool> {
    table.lock().translate(&TableFrames, page).ok().map(|found| found.attributes.permissions.write)
}

/// Does nothing: invalidations are requested once per change, by [`Invalidations`] or by the VM's reset.
pub struct Deferred;

impl Maintenance for Deferred {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}
