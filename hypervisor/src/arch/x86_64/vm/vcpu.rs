//! x86-64 state of a vCPU.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

use stile_apic::{Mode, Pages};
use stile_blob::{ApicVirtualization, Nested, Techniques, Topology};
use stile_board::pc;
use stile_paging::PAGE_SIZE;
use stile_sched::{VCPUS, VcpuId};
use stile_snapshot::countdown;
use stile_x86_decode::cache::Counters;

use super::watch::Watch;
use crate::address_space;
use crate::arch::contract::VcpuPart;
use crate::arch::x86_64::emulation::decoder::Decoder;
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::interrupts::events::Events;
use crate::arch::x86_64::vcpu::context::VcpuContext;
use crate::arch::x86_64::vcpu::msrs::EmulatedMsrs;
use crate::arch::x86_64::virt::descriptors::Sending;
use crate::arch::x86_64::virt::nested::{self, GuestVmx};
use crate::arch::x86_64::virt::paravirtual_eoi::LocalApic;
use crate::arch::x86_64::virt::virtual_apic;
use crate::arena::{self, Arena};
use crate::vm::Start;

/// x86-64 state of a vCPU.
pub struct Vcpu {
    /// Index in the VM.
    pub index: usize,
    /// Identifier of its APIC: the index, if there are no gaps.
    pub id: u32,
    /// Whether there are gaps between the VM's identifiers.
    has_gaps: bool,
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

impl VcpuPart for Vcpu {
    const MEMORY: u64 = arena::room::<VcpuContext>() + PAGE_SIZE + Decoder::MEMORY + size_of::<Pages>() as u64;

    fn memory(techniques: Techniques) -> u64 {
        Self::MEMORY + if techniques.nested == Nested::Off { 0 } else { nested::VCPU_MEMORY }
    }

    fn new(id: VcpuId, topology: Topology, techniques: Techniques, arena: &'static Arena) -> Result<Vcpu, &'static str> {
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
        let apic = UnsafeCell::new(LocalApic::with_bits(pages).with_least_period(timer::LEAST_PERIOD).with_gaps(!topology.fits_apic_ids()));
        let apic_level = techniques.apic_virtualization.min(virtual_apic::supported());
        let vmx = match techniques.nested {
            Nested::Off => None,
            _ => Some(UnsafeCell::new(nested::new_vcpu(vpid + VCPUS as u16, techniques.nested, arena)?)),
        };
        Ok(Vcpu {
            index,
            id: topology.apic_id(index),
            has_gaps: !topology.fits_apic_ids(),
            context: UnsafeCell::new(context),
            decoder,
            decoded: Counters::new(),
            pages,
            pages_at,
            apic,
            apic_level,
            starts_in_x2apic_mode: pc::starts_in_x2apic_mode(topology.last_apic_id()),
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
        self.pages.reset(self.id, self.index == 0);
        if self.starts_in_x2apic_mode {
            self.pages.set_x2apic_mode();
        }
        if self.index == 0 {
            self.pages.set_virtual_wire();
        }
        // SAFETY: the vCPU is loaded nowhere, and only the VM's start resets it.
        *unsafe { self.apic() } = LocalApic::with_bits(self.pages).with_least_period(timer::LEAST_PERIOD).with_gaps(self.has_gaps);
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
        self.msrs.eoi.reset();
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
