//! Events of L2 whose delivery an intercepted exception replaces (`handler/exception.rs`).

use stile_nested_vmx::{Field, nmi_window};

use super::merge::has_physical_nmis;
use super::state::{GuestVmx, Replaced};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::events::{self, BLOCKS_NMI};
use crate::arch::x86_64::interrupts::window;
use crate::arch::x86_64::vcpu::inject::{self, EXTERNAL, NMI, NMI_BLOCKED, TYPE, VALID};
use crate::arch::x86_64::vmx::extension::{self, pin, primary};
use crate::arch::x86_64::vmx::vmcs;

impl GuestVmx {
    /// Keeps an interrupt or NMI whose delivery to L2 an exception has replaced, until L2 can take it. `event`: the IDT-vectoring information.
    /// One of L1's own, which does not exit, becomes pending for L1 again. The cause of an exception recurs with its instruction.
    #[cold]
    pub fn put_back(&mut self, cpu: &mut Cpu, event: u64) {
        let pin = self.vmcs12.get32(Field::PIN_CONTROLS);
        match event & TYPE {
            EXTERNAL if pin & pin::EXTERNAL_INTERRUPTS == 0 && cpu.apic().put_back(event as u8) => return,
            // Likewise of the 8259s, which have supplied its vector.
            EXTERNAL if self.external.take() == Some(event as u8) => return cpu.vcpu().arch.events.put_back_external(event as u8),
            EXTERNAL => {}
            NMI if pin & pin::NMIS == 0 => return events::nmi(cpu.vcpu()),
            NMI => {}
            _ => return,
        }
        self.replaced = Some(Replaced { vmcs: self.address(), event: event & (VALID | TYPE | 0xff) });
        cpu.vcpu().arch.events.note_replaced(true);
    }

    /// Injects the event that the current L2 has not taken, or requests a window for it. Either VMCS is current, before and after.
    #[cold]
    pub fn deliver_replaced(&mut self, cpu: &Cpu) {
        let Some(Replaced { vmcs, event }) = self.replaced else { return cpu.vcpu().arch.events.note_replaced(false) };
        if vmcs != self.address() {
            return;
        }
        self.may_inject = true;
        self.enter_vmcs02(cpu);
        let is_nmi = inject::is_nmi(event);
        let is_free = vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0;
        let blocking = vmcs::read(Field::GUEST_INTERRUPTIBILITY);
        // Without virtual NMIs, an NMI is blocked from its own first delivery on, until L1 has handled it.
        let is_physical = has_physical_nmis(self.vmcs12.get32(Field::PIN_CONTROLS));
        let blocks = if is_physical { BLOCKS_NMI & !NMI_BLOCKED } else { BLOCKS_NMI };
        if is_free && if is_nmi { blocking & blocks == 0 } else { window::can_interrupt() } {
            vmcs::write(Field::ENTRY_INTERRUPTION, event);
            self.replaced = None;
            cpu.vcpu().arch.events.note_replaced(false);
        } else {
            let steps = extension::features().steps;
            let window = match (is_nmi, is_physical) {
                (false, _) => primary::INTERRUPT_WINDOW,
                // Behind the exception, before its handler's first instruction. There are no NMI windows ("Checks on VMX Controls").
                (true, true) if steps => primary::MONITOR_TRAP,
                (true, true) => primary::INTERRUPT_WINDOW,
                (true, false) => nmi_window(blocking, !is_free, steps),
            };
            self.set_own_window(window, true);
        }
    }
}
