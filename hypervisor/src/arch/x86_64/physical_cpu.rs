//! Contract of a physical CPU: kicks, waits, and the loaded vCPU.

use core::sync::atomic::{AtomicUsize, Ordering, fence};

use stile_board::CpuId;
use stile_ledger::RowId;

use crate::arch::contract::{Kind, PhysicalCpu};
use crate::arch::x86_64::host::cpu::{self, Cpu, Launch};
use crate::arch::x86_64::host::identity::{self, Identity};
use crate::arch::x86_64::host::{apic, mmu, speculation};
use crate::arch::x86_64::interrupts::{deadline, delivery};
use crate::arch::x86_64::virt::state;
use crate::arch::x86_64::virt::{direct, record};
use crate::arch::x86_64::virt::{exit, nested};
use crate::arch::x86_64::{boot, handler};
use crate::cpu::Loaded;
use crate::vm::Vcpu;

impl PhysicalCpu for Cpu {
    #[inline(always)]
    fn this_index() -> usize {
        cpu::this_index()
    }

    #[inline(always)]
    fn mark(place: &AtomicUsize) {
        let stack: usize;
        // SAFETY: the instruction only copies RSP into a register that is an output.
        unsafe { core::arch::asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
        // XCHG is the fence, too.
        place.swap(stack, Ordering::SeqCst);
    }

    fn of_mark(mark: usize) -> Option<CpuId> {
        mmu::STACKS.cpu_of(mark as u64)
    }

    #[inline(always)]
    fn complete_stores() {
        fence(Ordering::SeqCst);
    }

    fn kick(index: usize) {
        apic::kick(index);
    }

    fn kind(&self) -> Kind {
        Kind { capacity: identity::capacity(), identity: Identity::read() }
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
        state::take_interrupts();
        handler::idle_interrupt(self);
    }

    fn load(&mut self, vcpu: &'static Vcpu, _switched: bool) {
        speculation::load(self, vcpu.vm().number, || vcpu.arch.msrs.spec_ctrl());
        self.show_cpuid(&vcpu.vm().arch.cpuid);
        self.launched = Launch::CLEAR;
        let (cpu, context) = self.with_context();
        let fresh = context.load(cpu, &vcpu.vm().arch.place);
        if fresh {
            // SAFETY: the vCPU is being loaded here; nothing has borrowed its state yet.
            unsafe { vcpu.arch.begin() };
        }
        if vcpu.vm().arch.follows_loads {
            vcpu.vm().arch.load(self);
        }
        self.frame.registers = self.loaded().context().general;
        delivery::load(self, vcpu, fresh);
        direct::load(self, vcpu);
        vcpu.arch.msrs.stolen_time.get_cpu(vcpu.vm());
    }

    fn put(&mut self, mut loaded: Loaded<'static>, sleeps: bool) -> Option<u64> {
        let vcpu = loaded.vcpu();
        loaded.borrow().context().general = self.frame.registers;
        let wake = delivery::put(self, loaded.borrow());
        let wake = if direct::put(self, loaded.borrow()) { Some(0) } else { wake };
        loaded.borrow().context().put(self);
        if vcpu.vm().arch.follows_loads {
            vcpu.vm().arch.put(self, &mut loaded);
        }
        if !sleeps {
            vcpu.arch.msrs.stolen_time.lose_cpu(vcpu.vm());
        }
        wake.filter(|_| sleeps)
    }

    fn power_down(&mut self, mut loaded: Loaded<'static>) {
        let vm = loaded.vcpu().vm();
        self.launched = Launch::CLEAR;
        deadline::release(self, loaded.borrow());
        direct::close(self, loaded.vcpu());
        loaded.borrow().context().power_down();
        if vm.arch.follows_loads {
            vm.arch.put(self, &mut loaded);
            if let Some(vmx) = loaded.vmx() {
                nested::power_down(vmx);
            }
        }
    }

    #[inline(always)]
    fn finish_put(&mut self) {
        direct::kick_siblings(self);
    }

    /// Branch predictors only: TLB entries are invalidated when a vCPU first comes to this CPU, and no VMCS is
    /// current.
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
        exit::trace(self, on)
    }

    fn timer_expiry(&mut self) -> Option<u64> {
        delivery::timer_expiry(self)
    }

    fn became_pending(&self, before: Option<u64>, each: impl FnMut(u32)) {
        record::each_new(self, before, each);
    }

    fn sent_ipi(&self, row: RowId) -> Option<(u16, [u64; stile_board::VCPU_WORDS])> {
        record::sent(self, row)
    }

    /// PAUSE loops, and HLT in a VM with direct IPIs. Otherwise HLT always exits.
    fn trap_waiting(&mut self, on: bool) {
        self.loaded().context().pauses.trap(on);
        direct::trap_halts(on, self.loaded());
    }
}
