//! L2's memory, for Stile's emulation of L2's instructions: walks L2's tables, then L1's EPT.

use core::cell::Cell;

use stile_nested_vmx::ept::{self, ACCESSED_DIRTY, Rights};
use stile_paging::PAGE_SIZE;
use stile_x86_decode::{Context, Fault};
use stile_x86_walk::{GuestMemory, Restarts, translate};

use super::forward::Exit;
use super::second_stage::{EPT_MISCONFIGURATION, EPT_VIOLATION, LINEAR_VALID, TRANSLATED};
use super::state::GuestVmx;
use crate::arch::x86_64::emulation::processor::By;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::guest_word::GuestWord;
use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::vmcs::Field;

/// Reason for not making an access.
pub enum Refusal {
    /// L2 gets an exception.
    Fault(Fault),
    /// L1 gets an exit, with L2's linear and physical addresses.
    Exit { exit: Exit, linear: u64, physical: u64 },
}

/// L2's physical memory.
pub struct L2Memory {
    l1: Ram,
    /// L1's EPT pointer, if it uses EPT.
    tables: Option<u64>,
    physical_bits: u32,
    /// L1's address of the APIC-access page, if L1 uses one.
    apic_page: Option<u64>,
    /// First address that L1's EPT denied, and the reason.
    refused: Cell<Option<(u64, Refused)>>,
    /// Of all walks of the exit, in L2's tables and in L1's.
    restarts: Restarts,
}

/// L1's tables, walked with the restarts that the exit has left.
struct Tables<'a>(&'a L2Memory);

impl ept::Memory for Tables<'_> {
    fn read(&self, address: u64) -> Option<u64> {
        self.0.l1.read_u64(address)
    }

    fn replace(&self, address: u64, old: u64, new: u64) -> bool {
        self.0.restarts.check(self.0.l1.replace_u64(address, old, new))
    }
}

#[derive(Clone, Copy)]
struct Refused {
    fault: ept::Fault,
    needed: Rights,
}

impl L2Memory {
    /// Memory of the loaded vCPU's L2.
    pub fn new(cpu: &Cpu, vmx: &GuestVmx) -> L2Memory {
        L2Memory {
            l1: Ram(cpu.vcpu().vm()),
            tables: vmx.has_ept().then(|| vmx.vmcs12.get(Field::EPT_POINTER)),
            physical_bits: cpuid(0x8000_0008, 0).eax & 0xff,
            apic_page: vmx.apic_page12(),
            refused: Cell::new(None),
            restarts: Restarts::new(),
        }
    }

    /// L1's address of an L2 physical address. A denial by L1's EPT is recorded.
    fn in_l1(&self, address: u64, needed: Rights) -> Option<u64> {
        let Some(tables) = self.tables else { return Some(address) };
        match ept::walk(&Tables(self), tables, address, needed, self.physical_bits) {
            Ok(leaf) => Some(leaf.translate(address)),
            Err(fault) => {
                if self.refused.get().is_none() {
                    self.refused.set(Some((address, Refused { fault, needed })));
                }
                None
            }
        }
    }

    /// Rights needed to read an entry of L2's tables: with accessed and dirty flags in L1's EPT the read counts as a write.
    fn of_tables(&self) -> Rights {
        let has_flags = self.tables.is_some_and(|pointer| pointer & ACCESSED_DIRTY != 0);
        if has_flags { Rights(Rights::READ.0 | Rights::WRITE.0) } else { Rights::READ }
    }

    /// L1's address of a byte at a linear address, and the number of bytes up to the end of its 4 KiB. VMCS02 is current.
    pub fn piece(&self, context: &Context, linear: u64, write: bool, by: By) -> Result<(u64, u64), Refusal> {
        let found = translate(self, context.paging(), linear, by.access(context, write));
        // A table denied by L1's EPT reads as not present, but causes an exit.
        self.check(linear, LINEAR_VALID)?;
        let physical = found.map_err(|fault| Refusal::Fault(fault.into()))?.address;
        let address = self.in_l1(physical, if write { Rights::WRITE } else { Rights::READ });
        self.check(linear, LINEAR_VALID | TRANSLATED)?;
        let address = address.unwrap_or(physical);
        if self.apic_page == Some(address & !(PAGE_SIZE - 1)) {
            // A linear access in the course of an instruction: bits 15:12.
            let kind = if write { 1 << 12 } else { 0 };
            let exit = Exit { reason: basic::APIC_ACCESS, qualification: kind | (address % PAGE_SIZE), ..Exit::default() };
            return Err(Refusal::Exit { exit, linear, physical });
        }
        Ok((address, PAGE_SIZE - physical % PAGE_SIZE))
    }

    /// Reads the PDPTEs at an L2 physical address, as MOV to a control register loads them: a read, whatever flags L1's EPT has ("EPT
    /// Violations"). `None` if one is invalid, or L1's EPT denies the access.
    pub fn pdptes(&self, table: u64) -> Option<[u64; 4]> {
        cr0::pdptes(self.l1.0, self.in_l1(table, Rights::READ)?)
    }

    /// Fails if L1's EPT denied [`pdptes`](Self::pdptes): the exit has no linear address.
    pub fn check_pdptes(&self) -> Result<(), Refusal> {
        self.check(0, 0)
    }

    /// Fails if L1's EPT denied an access. `kind`: bits of the exit qualification of a violation.
    fn check(&self, linear: u64, kind: u64) -> Result<(), Refusal> {
        let Some((physical, Refused { fault, needed })) = self.refused.take() else { return Ok(()) };
        let (reason, qualification) = match fault {
            ept::Fault::Violation(rights) => (EPT_VIOLATION, kind | u64::from(needed.0) | u64::from(rights.0) << 3),
            ept::Fault::Misconfiguration => (EPT_MISCONFIGURATION, 0),
        };
        Err(Refusal::Exit { exit: Exit { reason, qualification, ..Exit::default() }, linear, physical })
    }
}

impl GuestMemory for L2Memory {
    type Place = GuestWord;

    const ZEROS: GuestWord = Ram::ZEROS;

    fn place(&self, address: u64) -> Option<GuestWord> {
        self.l1.place(self.in_l1(address, self.of_tables())?)
    }

    fn look(&self, place: GuestWord) -> u64 {
        self.l1.look(place)
    }

    fn read_u64(&self, address: u64) -> Option<u64> {
        self.l1.read_u64(self.in_l1(address, self.of_tables())?)
    }

    fn read_u32(&self, address: u64) -> Option<u32> {
        self.l1.read_u32(self.in_l1(address, self.of_tables())?)
    }

    fn replace_u64(&self, address: u64, old: u64, new: u64) -> bool {
        self.restarts.check(self.in_l1(address, Rights::WRITE).is_some_and(|address| self.l1.replace_u64(address, old, new)))
    }

    fn replace_u32(&self, address: u64, old: u32, new: u32) -> bool {
        self.restarts.check(self.in_l1(address, Rights::WRITE).is_some_and(|address| self.l1.replace_u32(address, old, new)))
    }
}
