//! x86-64 state of VMs and vCPUs: second stage, bitmaps, power states.

pub mod cpuid;
pub mod guest_memory;
pub mod protected;
pub mod shared;
pub mod stolen_time;
mod watch;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use stile_apic::{IoApic, LocalApic, Mode, Pages};
use stile_blob::{ApicVirtualization, DecodeCache, IpiAccess, Nested, Techniques, Topology};
use stile_board::pc;
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::{MAX_PIECES, Piece};
use stile_paging::table::{Attributes, Error, Geometry, Level, Mapping, MemoryType, PageTable};
use stile_sched::{VCPUS, VcpuId};
use stile_snapshot::countdown;
use stile_x86_decode::cache::Counters;

use crate::address_space;
use crate::arch::contract::{VcpuPart, VmPart};
use crate::arch::x86_64::emulation::decoder::Decoder;
use crate::arch::x86_64::emulation::devices::Devices;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::cpuid::Table;
use crate::arch::x86_64::host::{mmu, timer};
use crate::arch::x86_64::interrupts::events::Events;
use crate::arch::x86_64::vcpu::context::VcpuContext;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vcpu::msrs::EmulatedMsrs;
use crate::arch::x86_64::virt::descriptors::{Direct, Sending};
use crate::arch::x86_64::virt::nested::{self, GuestVmx};
use crate::arch::x86_64::virt::parts;
use crate::arch::x86_64::virt::place::Place;
use crate::arch::x86_64::virt::second_stage::{self, Format, Permissions};
use crate::arch::x86_64::virt::virtual_apic;
use crate::arena::{self, Arena, Spare};
use crate::cpu::Loaded;
use crate::memory::TableFrames;
use crate::vm::Start;
use protected::{Deferred, Protected};
use watch::Watch;

/// x86-64 state of a VM.
pub struct Vm {
    /// Constant CPUID answers.
    pub cpuid: Table,
    /// Topology of its vCPUs.
    pub topology: Topology,
    /// Memory for its structures.
    arena: &'static Arena,
    /// Extent of RAM.
    memory: heapless::Vec<Piece, MAX_PIECES>,
    /// Second stage. Tables for all of RAM are preallocated.
    table: &'static TicketLock<PageTable<Format>>,
    /// VMCS fields common to its vCPUs.
    pub place: Place,
    /// I/O APIC.
    pub io_apic: TicketLock<IoApic>,
    /// State of direct IPIs, if configured.
    pub direct: Option<Direct>,
    /// Decode cache of the protecting scheme.
    pub protected: Option<Protected>,
    /// VMX of its vCPUs, if its VM is nested.
    pub nested: Option<nested::Offer>,
    /// Mode of its vCPUs' APICs after a reset.
    starts_in_x2apic_mode: bool,
    /// Whether [`Vm::load`] and [`Vm::put`] have work.
    pub follows_loads: bool,
    /// PC-specific devices.
    pub devices: Devices,
    /// The operator was informed of a deadlock: see [`crate::arch::x86_64::interrupts::deadlock`].
    pub silence_reported: AtomicBool,
}

/// x86-64 state of a vCPU.
pub struct Vcpu {
    /// Index in the VM.
    pub index: usize,
    context: UnsafeCell<&'static mut VcpuContext>,
    decoder: UnsafeCell<Decoder>,
    /// Counters of its own decode cache: exact once the vCPU is off.
    pub decoded: Counters,
    /// Registers of its local APIC, and posted interrupts.
    pub pages: &'static Pages,
    /// Physical address of the pages.
    pub pages_at: u64,
    apic: UnsafeCell<LocalApic<'static>>,
    /// APIC virtualization in force while its APIC is enabled.
    pub apic_level: ApicVirtualization,
    /// Mode of its APIC after a reset.
    starts_in_x2apic_mode: bool,
    /// Whether it sends IPIs directly.
    pub direct: Sending,
    /// Pending events.
    pub events: Events,
    /// Deadline of devices that it keeps time for.
    pub watch: Watch,
    /// Emulated MSRs.
    pub msrs: EmulatedMsrs,
    /// VMX operation, if its VM is nested.
    vmx: Option<UnsafeCell<&'static mut GuestVmx>>,
}

// SAFETY: `context`, `decoder`, `apic` and `vmx` are accessed only through functions whose callers own the vCPU.
unsafe impl Sync for Vcpu {}

/// Permissions of RAM whose writes are tracked.
const TRACKED: Permissions = Permissions { write: false, execute: true };

/// Mapping of a part of a VM's RAM.
fn mapping(part: &Piece) -> Mapping<Permissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: Permissions::ALL };
    Mapping { address: part.gpa, output: part.pa, size: part.size, attributes }
}

impl VmPart for Vm {
    type Tables = PageTable<Format>;

    fn tables(arena: &'static Arena) -> Result<PageTable<Format>, &'static str> {
        let geometry = Geometry::stage1(48, mmu::pa_range()).ok_or("the second stage has no such shape")?;
        let root = arena.allocate_pages(PAGE_SIZE)?;
        PageTable::new(second_stage::format(), geometry, root).map_err(|_| "a second-stage root out of reach")
    }

    fn reserve(tables: &mut PageTable<Format>, part: &Piece, arena: &'static Arena) -> Result<(), &'static str> {
        tables.reserve(&mut { arena }, mapping(part)).map_err(|_| "a VM's memory can't be mapped: no memory for tables")
    }

    fn new(
        _number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        mut table: PageTable<Format>,
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Vm, &'static str> {
        if config.has_links() {
            return Err("devices can't be served on this architecture yet");
        }
        if !config.functions.is_empty() {
            return Err("PCI functions can't be assigned on this architecture yet");
        }
        let vcpus = usize::from(config.vcpus);
        let nested = nested::offer(techniques.nested)?;
        if nested.is_some() && vcpus > pc::MAX_NESTED_VCPUS {
            return Err("a VM with VMs of its own has at most 255 vCPUs");
        }
        if nested.is_some() && techniques.decode_cache == DecodeCache::Protect {
            return Err("a VM with VMs of its own can't have decode_cache = \"protect\"");
        }
        if nested.is_some() && techniques.ipi != IpiAccess::Trapped {
            return Err("a VM with VMs of its own can't have ipi = \"direct\" or \"gate\"");
        }
        let (place, direct) = parts::make(&mut table, techniques, vcpus, arena)?;
        let memory = heapless::Vec::from_slice(pieces).map_err(|()| "a VM's memory is in too many pieces")?;
        let ram = pieces.iter().map(|piece| piece.size).sum::<u64>();
        let table: &'static TicketLock<_> = arena.allocate()?.write(TicketLock::new(table));
        let protects = techniques.decode_cache == DecodeCache::Protect;
        let protected = if protects { Some(Protected::new(table, place.second_stage(), arena)?) } else { None };
        Ok(Vm {
            cpuid: cpuid::table(),
            topology: config.arrangement(),
            arena,
            memory,
            table,
            place,
            io_apic: TicketLock::new(IoApic::new()),
            direct,
            follows_loads: protected.is_some() || nested.is_some(),
            nested,
            starts_in_x2apic_mode: pc::starts_in_x2apic_mode(vcpus),
            protected,
            devices: Devices::new(ram, vcpus, arena)?,
            silence_reported: AtomicBool::new(false),
        })
    }

    fn reset(&self, _number: usize) {
        *self.io_apic.lock() = IoApic::new();
        self.silence_reported.store(false, Ordering::Relaxed);
        // Resets all local APICs as well.
        self.place.choose_access_page(|| !self.starts_in_x2apic_mode);
        self.devices.reset();
        if let Some(offer) = &self.nested {
            offer.reset();
        }
        if let Some(protected) = &self.protected {
            protected.clear(|| ());
        }
    }

    fn map_ram(&self, part: &Piece) -> Result<(), Error> {
        self.table.lock().map(&mut { self.arena }, mapping(part))
    }

    fn protect_ram(&self, part: &Piece) -> bool {
        let mut table = self.table.lock();
        let is_whole = table.has_block(&TableFrames, part.gpa);
        let done = table.protect(&mut { self.arena }, &mut Deferred, part.gpa, part.size, TRACKED);
        debug_assert!(done.is_ok(), "parts that were mapped as they are need no memory to be protected");
        is_whole
    }

    // Neither granting a right nor dividing a page needs an invalidation: the entries from before lead to the same memory, and a CPU
    // that faults by one drops it (the manual, "Invalidating Cached Translation Information").

    fn permit_page(&self, page: u64) -> bool {
        let permit = || self.table.lock().protect(&mut Spare(self.arena), &mut Deferred, page, PAGE_SIZE, Permissions::ALL).is_ok();
        match &self.protected {
            Some(protected) => protected.forget(page, permit),
            None => permit(),
        }
    }

    /// A table stays: other CPUs may have cached it. The next [`VmPart::protect_ram`] frees it.
    fn permit_ram(&self, part: &Piece) {
        let permit = || {
            let mut table = self.table.lock();
            let is_whole = table.has_block(&TableFrames, part.gpa);
            // Half of a table is not merged.
            let step = if is_whole { part.size } else { Level::L2.size() / 2 };
            for (at, end) in (part.gpa..part.gpa + part.size).step_by(step as usize).map(|at| (at, part.gpa + part.size)) {
                let done = table.protect(&mut { self.arena }, &mut Deferred, at, step.min(end - at), Permissions::ALL);
                debug_assert!(done.is_ok(), "parts that were mapped as they are need no memory to be permitted");
            }
        };
        match &self.protected {
            Some(protected) => protected.clear(permit),
            None => permit(),
        }
    }

    fn unmap_ram(&self, gpa: u64, size: u64) {
        let done = self.table.lock().vacate(&mut { self.arena }, &mut Deferred, gpa, size);
        debug_assert!(done.is_ok(), "whole blocks need no memory to be unmapped");
    }

    fn complete_unmap(&self) {
        second_stage::invalidate(self.place.second_stage());
    }

    fn tear_down(&self) {}
}

impl Vm {
    /// Second stage, with the memory of its tables.
    pub fn table(&self) -> (&TicketLock<PageTable<Format>>, &'static Arena) {
        (self.table, self.arena)
    }

    /// Called when a vCPU of a VM with protected pages or nesting is loaded on this CPU.
    #[cold]
    pub fn load(&self, cpu: &mut Cpu) {
        if let Some(protected) = &self.protected {
            protected.load(cpu);
        }
        // SAFETY: the vCPU is being loaded: no handler runs, and so none has its state.
        if let (cpu, Some(vmx)) = unsafe { WholeCpu::of(cpu) }.split() {
            nested::load(cpu, vmx);
        }
    }

    /// Called when such a vCPU is put.
    #[cold]
    pub fn put(&self, cpu: &mut Cpu, vcpu: &mut Loaded<'static>) {
        if let Some(protected) = &self.protected {
            protected.put(cpu);
        }
        nested::put(cpu, vcpu.vmx());
    }

    /// Whether the 2 MiB around an address are RAM without a gap, which a large page maps.
    pub fn has_large_page(&self, gpa: u64) -> bool {
        const LARGE: u64 = 2 << 20;
        let start = gpa & !(LARGE - 1);
        self.memory
            .iter()
            .any(|piece| start.checked_sub(piece.gpa).is_some_and(|into| into + LARGE <= piece.size && (piece.pa + into) % LARGE == 0))
    }

    /// Physical address of a guest-physical address in RAM.
    #[inline(always)]
    pub fn physical(&self, gpa: u64) -> Option<u64> {
        self.memory.iter().find_map(|piece| Some(piece.pa + gpa.checked_sub(piece.gpa).filter(|&into| into < piece.size)?))
    }
}

impl VcpuPart for Vcpu {
    const MEMORY: u64 = arena::room::<VcpuContext>() + PAGE_SIZE + Decoder::MEMORY + size_of::<Pages>() as u64;

    fn memory(techniques: Techniques) -> u64 {
        Self::MEMORY + if techniques.nested == Nested::Off { 0 } else { nested::VCPU_MEMORY }
    }

    fn new(id: VcpuId, of: usize, techniques: Techniques, arena: &'static Arena) -> Result<Vcpu, &'static str> {
        // VPIDs have 16 bits, and 0 is none. The last vCPU of a VM has no second one.
        const _: () = assert!(2 * VCPUS <= 1 << 16 && pc::MAX_NESTED_VCPUS < stile_board::MAX_VCPUS);
        let index = usize::from(id.vcpu());
        // SAFETY: all-zero is a valid VcpuContext: integers, and the first kind of start.
        let context = unsafe { arena.allocate::<VcpuContext>()?.assume_init_mut() };
        // VPID 0 is Stile's. A CPU's translations of an earlier vCPU with this VPID are invalidated at this vCPU's
        // first load there.
        let vpid = id.index() as u16 + 1;
        context.setup(vpid, arena.allocate_pages(PAGE_SIZE)?);
        let decoder = UnsafeCell::new(Decoder::new(techniques.decode_cache, arena)?);
        let pages_at = arena.allocate_pages(size_of::<Pages>() as u64)?;
        // SAFETY: the memory is zeroed, which is a valid value, page-aligned, and was just allocated.
        let pages = unsafe { &*address_space::physical(pages_at).cast::<Pages>() };
        let apic = UnsafeCell::new(LocalApic::new(pages).with_least_period(timer::LEAST_PERIOD));
        let apic_level = techniques.apic_virtualization.min(virtual_apic::supported());
        let vmx = match techniques.nested {
            Nested::Off => None,
            _ => Some(UnsafeCell::new(nested::new_vcpu(vpid + VCPUS as u16, techniques.nested, arena)?)),
        };
        Ok(Vcpu {
            index,
            context: UnsafeCell::new(context),
            decoder,
            decoded: Counters::new(),
            pages,
            pages_at,
            apic,
            apic_level,
            starts_in_x2apic_mode: pc::starts_in_x2apic_mode(of),
            direct: Sending::new(),
            events: Events::new(),
            watch: Watch::new(),
            msrs: EmulatedMsrs::new(),
            vmx,
        })
    }

    fn index(&self) -> usize {
        self.index
    }

    fn reset(&self) {
        self.pages.reset(self.index as u32, self.index == 0);
        if self.starts_in_x2apic_mode {
            self.pages.set_x2apic_mode();
        }
        if self.index == 0 {
            self.pages.set_virtual_wire();
        }
        // SAFETY: the vCPU is loaded nowhere, and only the VM's start resets it.
        *unsafe { self.apic() } = LocalApic::new(self.pages).with_least_period(timer::LEAST_PERIOD);
        self.events.reset(self.index == 0);
        self.direct.reset();
        self.watch.set(None);
        self.msrs.reset();
        // SAFETY: the vCPU is loaded nowhere, and only the VM's start resets it.
        if let Some(vmx) = unsafe { self.vmx() } {
            vmx.begin_anew();
        }
        // SAFETY: the vCPU is loaded nowhere, and only the VM's start resets it.
        unsafe { self.context() }.power_up();
    }

    fn show_stolen_time(&self, vm: &'static crate::vm::Vm, nanoseconds: u64) {
        self.msrs.stolen_time.show(vm, nanoseconds);
    }

    fn set_start(&self, start: &Start) {
        // SAFETY: the vCPU is loaded nowhere, and the VM being reset excludes concurrent calls.
        let context = unsafe { self.context() };
        context.reset(start);
        context.tsc_offset = 0;
    }
}

impl Vcpu {
    /// Registers in memory.
    ///
    /// # Safety
    /// The caller owns the vCPU: it is loading or putting it, or the vCPU is off and the caller holds the lock that
    /// keeps it off.
    #[expect(clippy::mut_from_ref, reason = "see Safety")]
    pub unsafe fn context(&self) -> &mut VcpuContext {
        // SAFETY: by the function's contract no other reference to the context exists.
        unsafe { &mut *self.context.get() }
    }

    /// Resets what INIT resets and other vCPUs can see: the APIC accepts nothing more.
    ///
    /// # Safety
    /// As [`Vcpu::context`].
    #[cold]
    pub unsafe fn init(&self) {
        // SAFETY: by the function's contract no other reference exists.
        unsafe { self.apic() }.init();
        self.direct.reset();
    }

    /// Completes the start of a vCPU by SIPI, unless that is done: resets the rest, and drops interrupts of senders that
    /// had found the APIC enabled before [`init`](Self::init), and posted them after it.
    ///
    /// # Safety
    /// As [`Vcpu::context`].
    #[cold]
    pub unsafe fn begin(&self) {
        // SAFETY: by the function's contract no other references exist.
        let (context, vmx) = unsafe { (self.context(), self.vmx()) };
        if !core::mem::take(&mut context.begins) {
            return;
        }
        self.pages.drop_posted();
        if self.index == 0 {
            self.pages.set_virtual_wire();
        }
        if let Some(vmx) = vmx {
            vmx.begin_anew();
        }
    }

    /// Instruction decoder.
    ///
    /// # Safety
    /// The vCPU is loaded on this CPU, and no other reference to the decoder exists.
    #[expect(clippy::mut_from_ref, reason = "see Safety")]
    #[inline(always)]
    pub unsafe fn decoder(&self) -> &mut Decoder {
        // SAFETY: by the function's contract no other reference to the decoder exists.
        unsafe { &mut *self.decoder.get() }
    }

    /// The owner's part of the local APIC.
    ///
    /// # Safety
    /// As [`Vcpu::context`].
    #[expect(clippy::mut_from_ref, reason = "see Safety")]
    pub unsafe fn apic(&self) -> &mut LocalApic<'static> {
        // SAFETY: by the function's contract no other reference to the APIC exists.
        unsafe { &mut *self.apic.get() }
    }

    /// VMX operation, if its VM is nested.
    ///
    /// # Safety
    /// As [`Vcpu::context`].
    #[expect(clippy::mut_from_ref, reason = "see Safety")]
    pub unsafe fn vmx(&self) -> Option<&mut GuestVmx> {
        // SAFETY: by the function's contract no other reference to the VMX state exists.
        self.vmx.as_ref().map(|vmx| unsafe { &mut **vmx.get() })
    }

    /// APIC virtualization in force: none while the APIC is disabled or its page was moved.
    pub fn apic_level_now(&self) -> ApicVirtualization {
        let virtualized = self.pages.mode() == Mode::X2Apic || self.pages.is_at(stile_board::pc::LOCAL_APIC);
        if virtualized { self.apic_level } else { ApicVirtualization::Off }
    }

    /// Advances the vCPU's TSC, and brings its APIC timer's expiry forward, by the given number of ticks. A TSC that is
    /// the processor's but for their rounding, and for IA32_TSC_ADJUST, becomes that, so that the deadline timer can be
    /// passed through.
    ///
    /// # Safety
    /// As [`Vcpu::hold_time`].
    pub unsafe fn advance_time(&self, ticks: u64) {
        // SAFETY: the caller guarantees that the vCPU is not loaded.
        let (apic, context) = unsafe { (self.apic(), self.context()) };
        // A microsecond.
        let tolerance = timer::frequency() / 1_000_000;
        let ticks = countdown::rounded(self.msrs.tsc_offset(), self.msrs.tsc_adjust.load(Ordering::Relaxed), ticks, tolerance);
        apic.advance_timer(ticks);
        context.set_tsc_offset(self.msrs.hold_tsc(ticks.wrapping_neg()));
    }

    /// The vCPU's next load invalidates translations.
    ///
    /// # Safety
    /// As [`Vcpu::hold_time`].
    pub unsafe fn forget_translations(&self) {
        // SAFETY: the caller guarantees that the vCPU is not loaded.
        unsafe { self.context() }.forget_host();
    }

    /// Sets back the vCPU's TSC and APIC timer by the given number of ticks.
    ///
    /// # Safety
    /// The vCPU is not loaded, and is not loaded during the call.
    pub unsafe fn hold_time(&self, ticks: u64) {
        // SAFETY: the caller guarantees that the vCPU is not loaded.
        let (apic, context) = unsafe { (self.apic(), self.context()) };
        apic.hold_timer(ticks);
        context.set_tsc_offset(self.msrs.hold_tsc(ticks));
    }
}
