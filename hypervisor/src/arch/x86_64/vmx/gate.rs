//! The gate of a VM (`ipi = "gate"`, docs/x86-gate.md): a second EPT view, which the guest enters by VMFUNC, with code
//! that notifies the CPUs of its own vCPUs. Crate `stile-gate` has the bytes and the proof of what they can do.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use stile_board::MAX_CPUS;
use stile_gate::page::{self, SLOT, SLOTS, Target};
use stile_gate::tables::{Frame, TABLES, entry};
use stile_paging::PAGE_SIZE;

use crate::address_space;
use crate::arch::x86_64::host::apic::vector;
use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::host::{speculation, xapic};
use crate::arch::x86_64::vmx::extension;
use crate::arena::Arena;

/// The view and its code.
pub struct Gate {
    /// EPT pointer of the guest's own view.
    pub own: u64,
    /// EPT pointer of the view.
    pointer: u64,
    /// Physical address of the EPTP list, whose entry 0 is the guest's own view, and entry 1 the gate.
    pub list: u64,
    code: &'static [AtomicU8],
    /// CPUs that have no translations of an earlier view with these tables.
    clean: [AtomicU64; MAX_CPUS / 64],
}

/// Families and models of CPUs for which a gate was tried in the emulator, and on no hardware: 55H is Bochs's `corei7_skylake_x`,
/// after Skylake-X. Others may read something else than zero between the registers of an APIC, such as stale data
/// (CVE-2022-21233), which a guest could use as entries of tables (docs/x86-gate.md, "Limits").
const TRIED_IN_EMULATOR: [(u32, u32); 1] = [(6, 0x55)];

/// Returns the reason why this CPU is refused a gate.
pub fn refusal_of_cpu() -> Option<&'static str> {
    let signature = cpuid(1, 0).eax;
    let model = (signature >> 8 & 0xf, signature >> 4 & 0xf | signature >> 12 & 0xf0);
    if !extension::features().gate {
        Some("the CPU has no EPTP switching, execute-only pages or 1 GiB pages")
    } else if !TRIED_IN_EMULATOR.contains(&model) {
        Some("it was not tried on this CPU model, not even in the emulator")
    } else if xapic::is_locked() {
        Some("firmware has locked the CPU's APIC in x2APIC mode")
    } else {
        None
    }
}

/// Returns the reason why a VM of this many vCPUs is refused a gate.
pub fn refusal(vcpus: usize) -> Option<&'static str> {
    if let Some(why) = refusal_of_cpu() {
        Some(why)
    } else if vcpus > SLOTS {
        // Each vCPU has a slot of its own.
        Some("it has slots for 64 vCPUs")
    } else if !xapic::is_on() {
        Some("the CPUs' APICs are in x2APIC mode: a VM of the image must have it, and APIC IDs be below 255")
    } else if speculation::is_needed_at_exits() {
        Some("the CPU needs mitigations at exits")
    } else {
        None
    }
}

// The proof is for this vector.
const _: () = assert!(page::NOTIFICATION == vector::POSTED);

impl Gate {
    /// Builds the view for a VM whose own second stage is `own`.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(own: u64, arena: &'static Arena) -> Result<Gate, &'static str> {
        let tables = arena.allocate_pages(TABLES.len() as u64 * PAGE_SIZE)?;
        let code = arena.allocate_pages(page::SIZE as u64)?;
        let list = arena.allocate_pages(PAGE_SIZE)?;
        let address = |frame| match frame {
            Frame::Code => code,
            Frame::Apic => xapic::physical(),
            table => tables + TABLES.iter().position(|&of| of == table).map_or(0, |at| at as u64) * PAGE_SIZE,
        };
        for table in TABLES {
            let place = address_space::physical(address(table)).cast::<u64>();
            for at in 0..512 {
                // SAFETY: the pages were just allocated, so that nothing else refers to them; the index is inside.
                unsafe { place.add(at).write(entry(table, at, address)) };
            }
        }
        let pointer = extension::ept_pointer(address(Frame::Root));
        // SAFETY: the page was just allocated, so that nothing else refers to it; the list's two entries are at its start.
        unsafe { address_space::physical(list).cast::<[u64; 2]>().write([own, pointer]) };
        // SAFETY: the page was just allocated, zeroed, and is permanent as the arena; all accesses are atomic.
        let code = unsafe { core::slice::from_raw_parts(address_space::physical(code).cast::<AtomicU8>(), page::SIZE) };
        let empty = page::slot(None, page::NOTIFICATION);
        code.iter().zip(empty.iter().cycle()).for_each(|(at, &byte)| at.store(byte, Ordering::Relaxed));
        Ok(Gate { own, pointer, list, code, clean: [const { AtomicU64::new(0) }; MAX_CPUS / 64] })
    }

    fn slot(&self, vcpu: usize) -> &[AtomicU8] {
        let start = vcpu % SLOTS * SLOT;
        &self.code[start..start + SLOT]
    }

    /// Directs notifications of a vCPU to the CPU with an APIC ID, on which it is loaded. The caller then looks for a
    /// notification that was on its way. Guests may be executing the slot: any mixture of its old and its new bytes is
    /// harmless. The slot stays closed if its code can't contain the APIC ID.
    pub fn open(&self, vcpu: usize, apic_id: u32) {
        let Some(target) = Target::new(apic_id) else { return self.close(vcpu) };
        self.slot(vcpu)[page::DESTINATION].store(target.destination(), Ordering::SeqCst);
        self.slot(vcpu)[page::ENTRY].store(page::OPEN, Ordering::SeqCst);
    }

    /// Closes the slot of a vCPU that is no longer loaded: notifications exit, so that their cost is the sender's.
    pub fn close(&self, vcpu: usize) {
        self.slot(vcpu)[page::ENTRY].store(page::CLOSED, Ordering::SeqCst);
    }

    /// Whether the slot of a vCPU is closed.
    pub fn is_closed(&self, vcpu: usize) -> bool {
        self.slot(vcpu)[page::ENTRY].load(Ordering::SeqCst) == page::CLOSED
    }

    /// Invalidates translations of an earlier view whose tables had the same place, once on each CPU.
    pub fn clean(&self, cpu: usize) {
        let (word, bit) = (&self.clean[cpu / 64 % self.clean.len()], 1 << (cpu % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
            extension::invalidate_ept(self.pointer);
        }
    }
}
