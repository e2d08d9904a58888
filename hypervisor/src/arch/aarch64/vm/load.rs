//! A VM's state that a CPU loads: its second stage, and the offset of its virtual counter.

use core::sync::atomic::{AtomicU16, Ordering};

use stile_board::{MAX_CPUS, MAX_VMS};
use stile_paging::registers::vttbr_el2;

use super::{Vm, second_stage};
use crate::arch::aarch64::host::speculation;
use crate::arch::aarch64::host::sysreg::{dsb_ish, isb, read_sysreg, write_sysreg};

/// VTTBR_EL2.BADDR; CnP is not set.
const ROOT: u64 = 0xffff_ffff_fffe;

/// Last vCPU of each VM to run on each CPU: see [`Vm::load_second_stage`].
static LAST_RAN: [[AtomicU16; MAX_VMS]; MAX_CPUS] = [const { [const { AtomicU16::new(u16::MAX) }; MAX_VMS] }; MAX_CPUS];

impl Vm {
    /// Offset of its virtual counter behind the physical one, in ticks.
    pub fn held_time(&self) -> u64 {
        self.held_time.load(Ordering::Relaxed)
    }

    /// Sets its virtual counter to read `count` when the physical one reads `at`. None of its vCPUs is loaded, and it has
    /// no EL2.
    pub fn set_virtual_count(&self, count: u64, at: u64) {
        self.held_time.store(at.wrapping_sub(count), Ordering::Relaxed);
        self.vmid.forget();
    }

    /// The next load of a vCPU takes another VMID. None of its vCPUs is loaded, and it has no EL2.
    pub fn forget_translations(&self) {
        // The unmapping is visible to walks with the next VMID.
        dsb_ish();
        self.vmid.forget();
    }

    /// Adds to the offset of its virtual counter. None of its vCPUs is loaded, and it has no EL2.
    pub fn hold_time(&self, ticks: u64) {
        self.held_time.fetch_add(ticks, Ordering::Relaxed);
        // A CPU that still has the table reloads it, together with the offset.
        self.vmid.forget();
    }

    /// Loads this VM's second stage on this CPU.
    ///
    /// The CPU's TLB may have entries of another vCPU of the same VM with the same ASID for other tables: a guest may
    /// use ASIDs differently on each of its CPUs. A CPU that last ran another vCPU of this VM therefore invalidates
    /// them (locally, for this VMID).
    #[inline(always)]
    pub fn load_second_stage(&self, vm: usize, vcpu: usize, cpu: usize) {
        let before = read_sysreg!(VTTBR_EL2);
        // VMIDs in force on a CPU stay with their VMs at a rollover.
        let kept = if before & ROOT == self.tables.root() { second_stage::kept_vmid(cpu, &self.vmid) } else { None };
        let now = kept.map(|vmid| vttbr_el2(self.tables.root(), vmid));
        if now != Some(before) {
            speculation::switch_vm(cpu);
            second_stage::load_table(&self.vmid, self.tables.root(), cpu);
            // Another VM's offset may differ. This VM's changes together with its VMID.
            write_sysreg!(CNTVOFF_EL2, self.held_time());
        }
        let last = &LAST_RAN[cpu % MAX_CPUS][vm % MAX_VMS];
        if last.load(Ordering::Relaxed) != vcpu as u16 {
            last.store(vcpu as u16, Ordering::Relaxed);
            // The instruction cache may hold instructions of another vCPU's mapping. The register write, if any, must
            // complete before the TLB instruction, which uses its VMID.
            // SAFETY: both drop cached translations and instructions only, of which Stile's own are fetched again from
            // memory that holds the same.
            unsafe { core::arch::asm!("isb", "tlbi vmalle1", "ic iallu", "dsb nsh", "isb", options(nostack, preserves_flags)) };
            if self.nested.is_some() {
                // Its guests' translations have VMIDs of their own.
                // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
                // its tables again.
                unsafe { core::arch::asm!("tlbi alle1", "dsb nsh", "isb", options(nostack, preserves_flags)) };
            }
        }
    }

    /// [`Vm::load_second_stage`] for another vCPU of a VM whose second stage is in force on this CPU, with its VMID, ID
    /// registers and CNTVOFF_EL2. No other one of the VM's vCPUs has a second stage of its own.
    ///
    /// The vCPU that was put just now ran with them, so that they are the VM's own. They stay valid while a vCPU is
    /// loaded: a rollover carries the VMIDs in force over, and [`Vm::hold_time`] finds no vCPU loaded.
    #[inline(always)]
    pub fn keep_second_stage(&self, vm: usize, vcpu: usize, cpu: usize) {
        LAST_RAN[cpu % MAX_CPUS][vm % MAX_VMS].store(vcpu as u16, Ordering::Relaxed);
        // As in `load_second_stage`. VTTBR_EL2 was not written, and the caller's ISB precedes the guest.
        // SAFETY: both drop cached translations and instructions only, of which Stile's own are fetched again from
        // memory that holds the same.
        unsafe { core::arch::asm!("tlbi vmalle1", "ic iallu", "dsb nsh", options(nostack, preserves_flags)) };
    }

    /// Restores the VM's own second-stage root after that of one of its vCPUs ([`place`](crate::arch::aarch64::interrupts::place)). The VMID is the same.
    pub fn load_own_root(&self) {
        write_sysreg!(VTTBR_EL2, read_sysreg!(VTTBR_EL2) & !ROOT | self.tables.root());
        isb();
    }

    /// Restores the VM's second stage after that of one of its guests.
    pub fn load_own_table(&self, cpu: usize) {
        second_stage::load_table(&self.vmid, self.tables.root(), cpu);
    }
}
