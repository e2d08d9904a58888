//! State of VMs and vCPUs for direct interprocessor interrupts ([`direct`](super::direct)).

use core::sync::atomic::{AtomicBool, Ordering};

use stile_blob::{ApicVirtualization, IpiAccess};
use stile_board::pc;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Attributes, Ept, EptPermissions, Mapping, MemoryType, PageTable};

use crate::arch::x86_64::host::idt;
use crate::arch::x86_64::host::instructions::msr;
use crate::arena::Arena;
use crate::console::log;

/// State of a VM whose vCPUs may send interprocessor interrupts themselves.
pub struct Direct {
    /// MSR bitmaps of vCPUs that send: IA32_TSC_DEADLINE exits, and does not.
    pub bitmaps: [u64; 2],
}

impl Direct {
    /// Reserves what a VM needs, if its configuration has it and the CPU can. `bitmap` makes an MSR bitmap that passes IA32_TSC_DEADLINE, or not.
    ///
    /// # Errors
    /// In words: there is no memory.
    pub fn new(
        table: &mut PageTable<Ept>,
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
        for index in 0..vcpus {
            let page = table.reserve(&mut { arena }, mapping(index, 0));
            page.map_err(|_| "posted-interrupt descriptors can't be mapped: no memory for tables")?;
        }
        idt::FOREIGN.store(true, Ordering::SeqCst);
        Ok(Some(Direct { bitmaps: [open_icr(bitmap(false)?), open_icr(bitmap(true)?)] }))
    }
}

/// Opens writes of the ICR in an MSR bitmap: the processor does not virtualize them, so they reach the physical APIC ("Virtualizing MSR-Based
/// APIC Accesses").
fn open_icr(bitmap: u64) -> u64 {
    const WRITES: usize = 2048;
    const ICR: usize = msr::X2APIC as usize + 0x30;
    // SAFETY: the page was just made and is in use nowhere; the offset is inside.
    unsafe { *crate::address_space::physical(bitmap).add(WRITES + ICR / 8) &= !(1 << (ICR % 8)) };
    bitmap
}

/// The descriptor of a vCPU, at `output`, in its VM's second stage.
pub fn mapping(vcpu: usize, output: u64) -> Mapping<EptPermissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: EptPermissions { write: true, execute: false } };
    Mapping { address: pc::IPI_DESCRIPTORS + vcpu as u64 * PAGE_SIZE, output, size: PAGE_SIZE, attributes }
}

/// Whether a vCPU sends interprocessor interrupts itself. Changed by the CPU that it is loaded on, or while it is off.
pub struct Sending(AtomicBool);

impl Sending {
    /// It does not.
    pub const fn new() -> Sending {
        Sending(AtomicBool::new(false))
    }

    /// After a reset or INIT it does not.
    pub fn reset(&self) {
        self.set(false);
    }

    /// Whether it does.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes that.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }

    /// Whether the vCPU exits as it waits by HLT: unless it sends itself, and `trapped` says that nothing else wants its CPU. A virtual interrupt
    /// ends its wait without an exit.
    pub fn halts_exit(&self, trapped: bool) -> bool {
        trapped || !self.is_on()
    }
}
