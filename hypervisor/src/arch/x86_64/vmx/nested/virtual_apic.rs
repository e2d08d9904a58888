//! L2's virtual APIC: the processor's, on L1's pages. L1's memory stays in place while its VM exists, whatever L1 does with it, so that an
//! address is translated only where L1 changes it. What is on the pages is L1's: the processor checks it at each entry.

use stile_nested_vmx::Field;

use super::frames::Frames;
use super::state::GuestVmx;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vmx::extension::{ept_pointer, primary, secondary};

/// In the name of a shadow: L1 has no EPT for it.
const IDENTITY: u64 = 1 << 0;
/// In such a name: there is no APIC-access page.
const NO_APIC_PAGE: u64 = 1 << 1;

/// Numbers of L1's pages.
const VIRTUAL: usize = 0;
const ACCESS: usize = 1;
pub const BITMAP: usize = 2;

impl GuestVmx {
    /// L1's address of the APIC-access page, if it uses one.
    pub fn apic_page12(&self) -> Option<u64> {
        (self.secondary12() & secondary::APIC_ACCESSES != 0).then(|| self.vmcs12.get(Field::APIC_ACCESS))
    }

    /// Whether a shadow is L2's second stage. It is not Stile's EPT of L1 if L2 has a virtual APIC: that has large pages, and an APIC-access
    /// page of L1's own APIC.
    pub fn has_shadow(&self) -> bool {
        self.has_ept() || self.primary12() & primary::TPR_SHADOW != 0 || self.secondary12() & secondary::APIC_ACCESSES != 0
    }

    /// EPT pointer of a shadow for an L2 without L1's EPT.
    pub fn identity_pointer(&mut self) -> u64 {
        let name = self.apic_page12().map_or(NO_APIC_PAGE, |page| page & !0xfff) | IDENTITY;
        ept_pointer(self.shadows.root(name, &mut Frames))
    }

    /// Writes the addresses of L2's virtual APIC, or of the APIC-access page of L1's own. VMCS02 is current.
    pub fn write_apic_pages(&mut self, cpu: &Cpu) {
        if self.primary12() & primary::TPR_SHADOW != 0 {
            let page = self.translate(cpu, VIRTUAL, self.vmcs12.get(Field::VIRTUAL_APIC)).unwrap_or(self.spare);
            self.vmcs02().compose(Field::VIRTUAL_APIC, page);
        }
        let own = cpu.vcpu().vm().arch.place.apic_access.as_ref().map(|page| page.address);
        let l1s = self.apic_page12().map(|page| self.translate(cpu, ACCESS, page).unwrap_or(self.spare));
        if let Some(page) = l1s.or(own) {
            self.vmcs02().compose(Field::APIC_ACCESS, page);
        }
    }

    /// The machine's address of a page of L1's RAM, by its number.
    pub fn translate(&mut self, cpu: &Cpu, number: usize, address: u64) -> Option<u64> {
        let known = &mut self.vmcs02().pages12[number];
        if known.0 != address {
            *known = (address, in_ram(cpu, address));
        }
        known.1
    }

    /// The machine's address of a page of L1's; of one that nothing else uses where L1 has no RAM.
    pub fn machine_page(&self, cpu: &Cpu, address: u64) -> u64 {
        in_ram(cpu, address).unwrap_or(self.spare)
    }
}

/// The machine's address of a page of L1's RAM.
fn in_ram(cpu: &Cpu, address: u64) -> Option<u64> {
    let vm = cpu.vcpu().vm();
    // Fills RAM that was not used yet.
    Ram(vm).pointer::<u64>(address).and_then(|_| vm.arch.physical(address))
}
