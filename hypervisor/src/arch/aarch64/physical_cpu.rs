//! Contract of a physical CPU: kicks, waits, and the loaded vCPU.

use core::sync::atomic::{AtomicUsize, Ordering};

use stile_board::CpuId;
use stile_ledger::RowId;

use crate::arch::aarch64::host::cpu::{self, Cpu};
use crate::arch::aarch64::host::identity::Identity;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg};
use crate::arch::aarch64::host::{board, features, gic, mmu, timer};
use crate::arch::aarch64::interrupts::{self, TIMER_ENABLE, delivery, interface, place};
use crate::arch::aarch64::vcpu::loaded::Parts;
use crate::arch::aarch64::vcpu::registers::El1;
use crate::arch::aarch64::vcpu::traps;
use crate::arch::aarch64::vm::second_stage;
use crate::arch::aarch64::{boot, emulation, exit, handler, nested};
use crate::arch::contract::{Kind, PhysicalCpu};
use crate::cpu::Loaded;
use crate::vm::Vcpu;

impl Cpu {
    /// Loads the registers and interrupt state of a vCPU whose second stage is loaded.
    #[inline(always)]
    fn load_state(&mut self, vcpu: &'static Vcpu, switched: bool) {
        let waiting_trapped = self.waiting_trapped;
        let Parts { context, fp_trapped, keys_trapped, .. } = self.parts();
        context.load(switched, waiting_trapped, fp_trapped, keys_trapped);
        let general = &raw mut context.general;
        self.enter_from(general);
        // The next list registers belong to this interface, and its timer lines to these timers. Also completes
        // invalidations of the instruction cache.
        isb();
        interrupts::load(self, vcpu);
    }

    /// [`PhysicalCpu::load`] of a vCPU with an EL2 or direct interrupts, out of the hot path.
    #[cold]
    #[inline(never)]
    fn load_special(&mut self, vcpu: &'static Vcpu) {
        self.load(vcpu, true);
    }
}

impl PhysicalCpu for Cpu {
    #[inline(always)]
    fn this_index() -> usize {
        cpu::this_index()
    }

    #[inline(always)]
    fn mark(place: &AtomicUsize) {
        place.store(cpu::this_block().addr(), Ordering::Release);
        gic::complete_stores();
    }

    fn of_mark(mark: usize) -> Option<CpuId> {
        mmu::STACKS.cpu_of(mark as u64)
    }

    #[inline(always)]
    fn complete_stores() {
        gic::complete_stores();
    }

    #[inline(always)]
    fn kick(index: usize) {
        gic::kick(index);
    }

    fn regain(index: usize) {
        gic::kick(index);
        place::regain(index);
    }

    fn is_confined(index: usize) -> bool {
        place::is_confined(index)
    }

    fn kind(&self) -> Kind {
        Kind { capacity: board::get().capacity(self.mpidr), identity: Identity::read() }
    }

    fn join(&mut self) -> Result<(), &'static str> {
        boot::join(self)
    }

    fn enter(&mut self) -> ! {
        exit::enter(self)
    }

    #[inline(always)]
    fn set_deadline(&mut self, deadline: Option<u64>) {
        timer::set_deadline(deadline);
    }

    fn idle_interrupt(&mut self) {
        handler::idle_interrupt(self);
    }

    /// Handles at most one interrupt: PSTATE.I stays set, so that others remain pending until the next call.
    fn poll_interrupts(&mut self) {
        handler::idle_interrupt(self);
    }

    #[inline(always)]
    fn load(&mut self, vcpu: &'static Vcpu, switched: bool) {
        let vm = vcpu.vm();
        self.show_id_registers(&vm.arch.id_registers);
        vm.arch.load_second_stage(vm.number, vcpu.arch.index, self.index);
        self.load_state(vcpu, switched);
        nested::load_second_stage(self);
    }

    #[inline(always)]
    fn load_beside(&mut self, vcpu: &'static Vcpu) {
        // With an EL2 or direct interrupts, a vCPU may have a second stage of its own.
        if vcpu.arch.is_special() {
            return self.load_special(vcpu);
        }
        vcpu.vm().arch.keep_second_stage(vcpu.vm().number, vcpu.arch.index, self.index);
        self.load_state(vcpu, true);
    }

    #[inline(always)]
    fn put(&mut self, loaded: Loaded<'static>, sleeps: bool) -> Option<u64> {
        let vcpu = loaded.vcpu();
        let (pending, active) = interrupts::put(self, vcpu);
        let context = loaded.context();
        self.store_general(&mut context.general);
        context.put();
        interrupts::stop_timers(context.el1[El1::CntvCtl as usize] | context.el1[El1::CntpCtl as usize]);
        interrupts::deactivate(self, active);
        if !sleeps {
            return None;
        }
        if pending {
            return Some(0);
        }
        // CNTx_CTL_EL0 with ENABLE set and IMASK clear: the timer can interrupt.
        let is_set = |control: El1| context.el1[control as usize] & 0b11 == 0b01;
        let never = u64::MAX;
        let mut deadline = never;
        if is_set(El1::CntvCtl) {
            let compare = context.el1[El1::CntvCval as usize];
            deadline = match nested::timer_offset(vcpu, context.nested.as_deref()) {
                0 => compare,
                offset => timer::virtual_deadline(compare, offset),
            };
        }
        if is_set(El1::CntpCtl) {
            deadline = deadline.min(context.el1[El1::CntpCval as usize]);
        }
        if let Some(nested) = context.nested.as_deref() {
            deadline = deadline.min(nested.stand_in_deadline().unwrap_or(never));
        }
        (deadline != never).then_some(deadline)
    }

    fn power_down(&mut self, loaded: Loaded<'static>) {
        // Pending interrupts are kept for a later start.
        let (_, active) = interrupts::put(self, loaded.vcpu());
        interrupts::stop_timers(TIMER_ENABLE);
        interrupts::deactivate(self, active);
        loaded.context().abandon();
    }

    fn forget_vms(&self) {
        // Without a loaded vCPU, VTTBR_EL2 may still refer to the tables of a VM that is being retired.
        if self.vcpu.is_none() {
            second_stage::forget(self.index);
        }
    }

    #[inline(always)]
    fn take_interrupts(&mut self) -> bool {
        nested::resume(self);
        true
    }

    fn interrupt_pending(&mut self) -> bool {
        delivery::pull(self);
        interrupts::is_pending(self, self.vcpu())
    }

    fn trace_exits(&self, on: bool) -> bool {
        exit::vectors::trace(on)
    }

    /// A vCPU with an EL2 has timers that are not looked at.
    fn timer_expiry(&mut self) -> Option<u64> {
        if self.vcpu().arch.is_special() {
            return None;
        }
        let [virt, physical] = if features::get().vhe {
            let virt = (read_sysreg!(CNTV_CTL_EL02), read_sysreg!(CNTV_CVAL_EL02));
            [virt, (read_sysreg!(CNTP_CTL_EL02), read_sysreg!(CNTP_CVAL_EL02))]
        } else {
            let virt = (read_sysreg!(CNTV_CTL_EL0), read_sysreg!(CNTV_CVAL_EL0));
            [virt, (read_sysreg!(CNTP_CTL_EL0), read_sysreg!(CNTP_CVAL_EL0))]
        };
        // CNTx_CTL_EL0 with ENABLE set and IMASK clear, as in `put`.
        let set = |(control, compare): (u64, u64)| (control & 0b11 == 0b01).then_some(compare);
        let virt = set(virt).map(|compare| timer::virtual_deadline(compare, self.vcpu().vm().arch.held_time()));
        virt.into_iter().chain(set(physical)).min()
    }

    fn became_pending(&self, before: Option<u64>, each: impl FnMut(u32)) {
        // Without an earlier state, all list registers count as having been empty.
        interface::each_new(before.unwrap_or(u64::MAX), each);
    }

    fn sent_ipi(&self, row: RowId) -> Option<(u16, [u64; stile_board::VCPU_WORDS])> {
        (row == exit::ROW_OF_SGI).then(|| emulation::gic::sent_by_exit(self))
    }

    /// WFI and WFE.
    fn trap_waiting(&mut self, on: bool) {
        if !nested::trap_waiting(self, on) {
            traps::set_waiting_traps(on);
        }
    }
}
