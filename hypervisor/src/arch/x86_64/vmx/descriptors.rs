//! State of VMs and vCPUs with direct IPIs ([`direct`](super::direct)).

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use stile_blob::{ApicVirtualization, IpiAccess, TimerAccess};
use stile_board::pc;
use stile_board::pc::features;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Attributes, Ept, EptPermissions, Mapping, MemoryType, PageTable};

use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::{idt, xapic};
use crate::arch::x86_64::vmx::gate::{self, Gate};
use crate::arena::Arena;
use crate::console::log;

/// Whether any VM has vCPUs that may send IPIs themselves.
pub static ANY: AtomicBool = AtomicBool::new(false);

/// The most vCPUs of a VM with direct IPIs: [`pc::msr::IPI_CONTROL`] has eight bits for their number.
const MOST: usize = 255;

/// Means of a VM whose vCPUs may send IPIs themselves.
pub enum Direct {
    /// The physical ICR: MSR bitmaps of sending vCPUs, with and without exits for IA32_TSC_DEADLINE.
    Icr([u64; 2]),
    /// The gate.
    Gate(Gate),
}

impl Direct {
    /// Allocates the state, if configured and supported. `ept`: pointer of the second stage. `bitmap` creates an MSR bitmap, with or
    /// without exits for IA32_TSC_DEADLINE.
    ///
    /// # Errors
    /// A description: no memory is left.
    pub fn new(
        table: &mut PageTable<Ept>,
        ept: u64,
        ipi: IpiAccess,
        level: ApicVirtualization,
        vcpus: usize,
        arena: &'static Arena,
        bitmap: impl Fn(bool) -> Result<u64, &'static str>,
    ) -> Result<Option<Direct>, &'static str> {
        if ipi == IpiAccess::Trapped {
            return Ok(None);
        }
        if level < ApicVirtualization::Posted {
            log!("no direct interprocessor interrupts: they need posted interrupts");
            return Ok(None);
        }
        if vcpus > MOST {
            log!("no direct interprocessor interrupts: at most {MOST} vCPUs can be told of");
            return Ok(None);
        }
        if let (IpiAccess::Gate, Some(why)) = (ipi, gate::refusal(vcpus)) {
            log!("no gate for interprocessor interrupts: {why}");
            return Ok(None);
        }
        if ipi == IpiAccess::Direct && xapic::is_on() {
            log!("no direct interprocessor interrupts: the CPUs' APICs are in xAPIC mode, for a VM with a gate");
            return Ok(None);
        }
        for index in 0..vcpus {
            let page = table.reserve(&mut { arena }, mapping(index, 0));
            page.map_err(|_| "posted-interrupt descriptors can't be mapped: no memory for tables")?;
        }
        ANY.store(true, Ordering::SeqCst);
        if ipi == IpiAccess::Gate {
            log!("a gate for interprocessor interrupts: tried on this CPU model in the emulator only, not on hardware");
            return Ok(Some(Direct::Gate(Gate::new(ept, arena)?)));
        }
        idt::FOREIGN.store(true, Ordering::SeqCst);
        Ok(Some(Direct::Icr([open_icr(bitmap(false)?), open_icr(bitmap(true)?)])))
    }

    /// The gate, if that is the means.
    pub fn gate(&self) -> Option<&Gate> {
        match self {
            Direct::Gate(gate) => Some(gate),
            Direct::Icr(_) => None,
        }
    }

    /// Its bits of EAX of CPUID leaf [`features::LEAF`].
    pub fn features(&self, timer: TimerAccess) -> u32 {
        match self {
            Direct::Gate(_) => features::GATE_IPI,
            Direct::Icr(_) if timer == TimerAccess::Direct => features::DIRECT_IPI | features::DIRECT_TIMER,
            Direct::Icr(_) => features::DIRECT_IPI,
        }
    }
}

/// Clears the ICR's write bit in an MSR bitmap. The processor does not virtualize these writes, so that they reach
/// the physical APIC ("Virtualizing MSR-Based APIC Accesses").
fn open_icr(bitmap: u64) -> u64 {
    const WRITES: usize = 2048;
    const ICR: usize = msr::X2APIC as usize + 0x30;
    // SAFETY: the page was just created and is unused; the offset is inside.
    unsafe { *crate::address_space::physical(bitmap).add(WRITES + ICR / 8) &= !(1 << (ICR % 8)) };
    bitmap
}

/// Maps a vCPU's descriptor, at `output`, in its VM's second stage.
pub fn mapping(vcpu: usize, output: u64) -> Mapping<EptPermissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: EptPermissions { write: true, execute: false } };
    Mapping { address: pc::IPI_DESCRIPTORS + vcpu as u64 * PAGE_SIZE, output, size: PAGE_SIZE, attributes }
}

/// In [`pc::msr::IPI_CONTROL`]: the vCPU sends IPIs directly.
pub const SENDS: u8 = 1 << 0;
/// In [`pc::msr::IPI_CONTROL`]: expiries of its timer are notifications.
pub const TIMER: u8 = 1 << 1;

/// Whether a vCPU sends IPIs directly, and has a timer that notifies: [`SENDS`] and [`TIMER`]. Written by the CPU on which it is loaded, or
/// while it is off.
pub struct Sending(AtomicU8);

impl Sending {
    /// Disabled.
    pub const fn new() -> Sending {
        Sending(AtomicU8::new(0))
    }

    /// Disables direct IPIs after a reset or INIT.
    pub fn reset(&self) {
        self.set(0);
    }

    /// The enabled bits.
    pub fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether direct IPIs are enabled.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.get() & SENDS != 0
    }

    /// Whether expiries of the timer are notifications while it is passed through.
    pub fn has_timer(&self) -> bool {
        self.get() & TIMER != 0
    }

    /// Changes what is enabled.
    pub fn set(&self, on: u8) {
        self.0.store(on, Ordering::Relaxed);
    }

    /// Whether HLT exits: not if the vCPU sends directly and, by `trapped`, nothing else wants its CPU. A virtual
    /// interrupt then ends HLT without an exit.
    pub fn halts_exit(&self, trapped: bool) -> bool {
        trapped || !self.is_on()
    }
}
