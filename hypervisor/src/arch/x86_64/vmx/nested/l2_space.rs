//! L2's memory and L1's devices, for emulated instructions of L2. VMCS02 is current, except while a device is accessed.

use core::cell::Cell;

use stile_nested_vmx::Field;
use stile_x86_decode::{Context, Fault};

use super::l2_memory::{L2Memory, Refusal};
use super::state::{GuestVmx, to_vmcs01};
use crate::arch::x86_64::emulation::processor::{By, Space};
use crate::arch::x86_64::host::cpu::Cpu;

/// The space of the loaded vCPU's L2.
pub struct L2Space<'a> {
    vmx: &'a mut GuestVmx,
    memory: L2Memory,
    /// Exit to L1 for the first access that its EPT denied.
    exit: Cell<Option<Refusal>>,
}

impl<'a> L2Space<'a> {
    /// Returns the space with this memory.
    pub fn new(vmx: &'a mut GuestVmx, memory: L2Memory) -> L2Space<'a> {
        L2Space { vmx, memory, exit: Cell::new(None) }
    }

    /// The exit to L1 that takes the place of the instruction's outcome.
    pub fn take_exit(&self) -> Option<Refusal> {
        self.exit.take()
    }
}

impl Space for L2Space<'_> {
    fn translate(&self, _: &Cpu, context: &Context, linear: u64, write: bool, by: By) -> Result<(u64, u64), Fault> {
        self.memory.piece(context, linear, write, by).map_err(|refusal| match refusal {
            Refusal::Fault(fault) => fault,
            exit @ Refusal::Exit { .. } => {
                self.exit.set(Some(exit));
                // Ends the instruction: see `take_exit`.
                Fault::InvalidOpcode
            }
        })
    }

    fn at_device<T>(&mut self, cpu: &mut Cpu, access: impl FnOnce(&mut Cpu) -> T) -> T {
        to_vmcs01(cpu);
        let done = access(cpu);
        self.vmx.enter_vmcs02(cpu);
        done
    }

    fn cr0_mask(&self) -> u64 {
        self.vmx.vmcs12.get(Field::CR0_MASK)
    }
}
