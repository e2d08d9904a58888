//! A CPU as the rest of Stile sees it: kicks, waits, and the vCPU that is loaded.

use core::sync::atomic::{Ordering, fence};

use stile_ledger::RowId;

use crate::arch::contract::PhysicalCpu;
use crate::arch::x86_64::host::cpu::{self, Cpu, Launch};
use crate::arch::x86_64::host::{apic, speculation};
use crate::arch::x86_64::interrupts::{deadline, delivery, direct, record};
use crate::arch::x86_64::{boot, exit, handler, nested};
use crate::vm::Vcpu;

impl PhysicalCpu for Cpu {
    #[inline(always)]
    fn this_index() -> usize {
        cpu::this_index()
    }

    #[inline(always)]
    fn complete_stores() {
        fence(Ordering::SeqCst);
    }

    fn kick(index: usize) {
        apic::kick(index);
    }

    fn join(&mut self) -> Result<(), &'static str> {
        boot::join(self)
    }

    fn enter(&mut self) -> ! {
        exit::enter(self)
    }

    fn set_deadline(&mut self, deadline: Option<u64>) {
        deadline::set_own(self, deadline);
    }

    fn idle_interrupt(&mut self) {
        handler::idle_interrupt(self);
    }

    fn poll_interrupts(&mut self) {
        // SAFETY: Stile's interrupts only leave a note. STI lets none come before the NOP is done.
        unsafe { core::arch::asm!("sti", "nop", "cli", options(nostack)) };
        handler::idle_interrupt(self);
    }

    fn load(&mut self, vcpu: &'static Vcpu, _switched: bool) {
        // SAFETY: the scheduler gave the vCPU to this CPU, and to no other.
        let context = unsafe { vcpu.arch.context() };
        speculation::switch_vm(self.index, vcpu.vm().number);
        self.show_cpuid(&vcpu.vm().arch.cpuid);
        let fresh = context.load(self, &vcpu.vm().arch.place);
        if vcpu.vm().arch.follows_loads {
            vcpu.vm().arch.load(self);
        }
        self.frame.registers = context.general;
        delivery::load(self, vcpu, fresh);
        direct::load(self, vcpu);
    }

    fn put(&mut self, vcpu: &'static Vcpu, sleeps: bool) -> Option<u64> {
        // SAFETY: the vCPU is loaded here; the scheduler's lock keeps others from loading it until this is done.
        let context = unsafe { vcpu.arch.context() };
        context.general = self.frame.registers;
        let wake = delivery::put(self, vcpu);
        let wake = if direct::put(self, vcpu) { Some(0) } else { wake };
        context.put(self);
        if vcpu.vm().arch.follows_loads {
            vcpu.vm().arch.put(self, vcpu);
        }
        wake.filter(|_| sleeps)
    }

    fn power_down(&mut self, vcpu: &'static Vcpu) {
        self.launched = Launch::CLEAR;
        deadline::release(self, vcpu);
        // SAFETY: as in `put`.
        unsafe { vcpu.arch.context() }.drop_vmcs();
        if vcpu.vm().arch.follows_loads {
            vcpu.vm().arch.put(self, vcpu);
            nested::power_down(vcpu);
        }
    }

    /// Only of branch targets: what it remembers of translations is invalidated when a vCPU first comes to this CPU, and no VMCS is current.
    fn forget_vms(&self) {
        speculation::forget_vm(self.index);
    }

    #[inline]
    fn take_interrupts(&mut self) -> bool {
        delivery::take(self)
    }

    fn interrupt_pending(&mut self) -> bool {
        delivery::is_pending(self)
    }

    fn trace_exits(&self, on: bool) -> bool {
        // Otherwise no VMCS is current.
        self.vcpu.is_some() && {
            record::choose_source(self);
            exit::trace(on)
        }
    }

    fn became_pending(&self, before: Option<u64>, each: impl FnMut(u32)) {
        record::each_new(self, before, each);
    }

    fn sent_ipi(&self, row: RowId) -> Option<(u16, u64)> {
        record::sent(self, row)
    }

    /// In a loop of PAUSE; and by HLT, if its VM has direct interprocessor interrupts. By HLT all others always exit.
    fn trap_waiting(&mut self, on: bool) {
        self.loaded().context().pauses.trap(on);
        direct::trap_halts(self.vcpu(), on);
    }
}
