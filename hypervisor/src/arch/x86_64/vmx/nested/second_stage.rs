//! L2's second stage: shadows of L1's EPT, filled at EPT violations.

use stile_nested_vmx::ept::{self, ACCESSED_DIRTY, Leaf, Rights};
use stile_nested_vmx::shadow::Page;

use super::frames::Frames;
use super::state::GuestVmx;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::extension::ept_pointer;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use stile_x86_walk::GuestMemory;

/// Exit reasons.
pub const EPT_VIOLATION: u64 = basic::EPT_VIOLATION as u64;
pub const EPT_MISCONFIGURATION: u64 = 49;
/// Bits of the exit qualification of a violation: linear address valid, and translated.
pub const LINEAR_VALID: u64 = 1 << 7;
pub const TRANSLATED: u64 = 1 << 8;

/// Rights in the APIC-access page: L2's fetches there are violations, which become APIC-access exits. Bochs 3.0 ends at a fetch that the
/// second stage permits.
const NO_FETCHES: Rights = Rights(Rights::READ.0 | Rights::WRITE.0);

/// Result of an EPT violation of L2.
pub enum Violation {
    /// Stile's own: resolved, fully or in part.
    Resolved,
    /// Likewise, amid the delivery of an event, which the next entry injects again.
    Reinjects,
    /// Missing in L1's EPT. Exit qualification for L1.
    OfL1(u64),
    /// L1's EPT is misconfigured.
    Misconfigured,
    /// L2's access translates to this L1 address outside RAM.
    Device(u64),
    /// A fetch in the APIC-access page. Exit qualification for L1.
    ApicFetch(u64),
}

impl ept::Memory for Ram {
    fn read(&self, address: u64) -> Option<u64> {
        self.read_u64(address)
    }

    fn replace(&self, address: u64, old: u64, new: u64) -> bool {
        self.replace_u64(address, old, new)
    }
}

/// The translation of an L2 without L1's EPT.
const fn identity(address: u64) -> Leaf {
    const SHIFT: u32 = 21;
    Leaf { address: address >> SHIFT << SHIFT, shift: SHIFT, rights: Rights::ALL }
}

impl GuestVmx {
    /// EPT pointer of the shadow of L1's EPT.
    pub fn shadow_pointer(&mut self, pointer12: u64) -> u64 {
        // Tables with flags and without have shadows of their own: with them, pages are writable only once they are dirty.
        ept_pointer(self.shadows.root(pointer12 & (!0xfff | ACCESSED_DIRTY), &mut Frames)) | pointer12 & ACCESSED_DIRTY
    }

    /// Applies L1's INVEPT.
    pub fn invalidate_shadows(&mut self, pointer12: Option<u64>) {
        let Some(pointer) = pointer12 else { return self.shadows.invalidate(None, &mut Frames) };
        for flags in [0, ACCESSED_DIRTY] {
            self.shadows.invalidate(Some(pointer & !0xfff | flags), &mut Frames);
        }
    }

    /// Handles an EPT violation of L2, whose VMCS is current.
    pub fn violation(&mut self, cpu: &Cpu) -> Violation {
        /// Kind of access, whether the linear address is valid and translated, and NMI unblocking due to IRET.
        const KEPT: u64 = 0b111 | LINEAR_VALID | TRANSLATED | 1 << 12;
        let vm = cpu.vcpu().vm();
        let address = vmcs::read(Field::GUEST_PHYSICAL);
        let pointer12 = if self.has_ept() { self.vmcs12.get(Field::EPT_POINTER) } else { 0 };
        let mut qualification = vmcs::read(Field::EXIT_QUALIFICATION);
        if pointer12 & ACCESSED_DIRTY != 0 && qualification & (LINEAR_VALID | TRANSLATED) == LINEAR_VALID {
            // An access to L2's own tables is a read and a write ("Exit Qualification for EPT Violations"). Bochs 3.0 reports the write.
            qualification |= 0b11;
        }
        let needed = Rights(qualification as u8 & 0b111);
        let bits = cpuid(0x8000_0008, 0).eax & 0xff;
        let leaf = if self.has_ept() {
            match ept::walk(&Ram(vm), pointer12, address, needed, bits) {
                Ok(leaf) => leaf,
                Err(ept::Fault::Misconfiguration) => return Violation::Misconfigured,
                Err(ept::Fault::Violation(rights)) => return Violation::OfL1(qualification & KEPT | u64::from(rights.0) << 3),
            }
        } else {
            identity(address)
        };
        let l1 = leaf.translate(address);
        let is_beside_apic_page = self.is_beside_apic_page(l1);
        let is_in_apic_page = is_beside_apic_page && self.is_in_apic_page(l1);
        if is_in_apic_page && needed.contains(Rights::EXECUTE) {
            // "Exit Qualification for APIC-Access VM Exits": the offset, and a linear access for an instruction fetch.
            return Violation::ApicFetch(2 << 12 | l1 & 0xfff);
        }
        let Some(machine) = vm.arch.physical(l1) else { return self.outside_ram(address, l1, leaf.rights, qualification) };
        // L2 retries, and faults again until the block is filled. No block is tracked, which would stay read-only: see `Vm::track`.
        if !vm.is_writable(l1) {
            vm.touch(l1);
        }
        if vm.is_writable(l1) {
            let shift = if leaf.shift >= 21 && vm.arch.has_large_page(l1) && !is_beside_apic_page { 21 } else { 12 };
            let allowed = if is_in_apic_page { NO_FETCHES } else { Rights::ALL };
            let rights = Rights(leaf.rights.0 & allowed.0);
            let page = Page { guest: address, machine: machine & !((1 << shift) - 1), shift, rights };
            let root = vmcs::read(Field::EPT_POINTER) & !0xfff;
            self.shadows.map(root, page, &mut Frames);
        }
        inject::block_nmis_if_iret(qualification);
        if inject::deliver_again() { Violation::Reinjects } else { Violation::Resolved }
    }

    /// Whether a large page has the APIC-access page: the processor need not notice accesses to it there.
    fn is_beside_apic_page(&self, l1: u64) -> bool {
        self.apic_page12().is_some_and(|page| page >> 21 == l1 >> 21)
    }

    /// Whether an address is in the APIC-access page.
    #[cold]
    fn is_in_apic_page(&self, l1: u64) -> bool {
        self.apic_page12().is_some_and(|page| page == l1 & !0xfff)
    }

    /// Handles a violation at an L1 address outside RAM: of a device, or of the APIC-access page, where accesses exit or are virtualized
    /// whatever is there.
    #[cold]
    fn outside_ram(&mut self, address: u64, l1: u64, rights: Rights, qualification: u64) -> Violation {
        if !self.is_in_apic_page(l1) {
            return Violation::Device(l1);
        }
        let page = Page { guest: address, machine: self.spare, shift: 12, rights: Rights(rights.0 & NO_FETCHES.0) };
        self.shadows.map(vmcs::read(Field::EPT_POINTER) & !0xfff, page, &mut Frames);
        inject::block_nmis_if_iret(qualification);
        if inject::deliver_again() { Violation::Reinjects } else { Violation::Resolved }
    }
}
