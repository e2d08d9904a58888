//! Ablation: measures techniques of the exit path by undoing them, with a second vector table (`ablation.S`) that is
//! used only in a machine with a VM that ablates. The ordinary path is unaffected.
//!
//! An ablated design does work at exit and reverts it at entry. Here both happen at the exit, before the ordinary
//! path, which then finds the usual state. The total work per crossing is the same.

use core::mem::MaybeUninit;

use stile_blob::Ablation;

use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::gicv2::{read_gic, write_gic};
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};
use crate::arch::aarch64::interrupts::interface::{self, Interface, Lists};
use crate::arch::aarch64::interrupts::{self, TIMER_ENABLE};
use crate::arch::aarch64::vcpu::context::VcpuContext;
use crate::arch::aarch64::vcpu::registers;
use crate::arch::aarch64::vm::second_stage;
use crate::vm::Vcpu;

core::arch::global_asm!(include_str!("ablation.S"));

/// Called by the second table's vectors before the exit is counted.
#[unsafe(no_mangle)]
extern "C" fn ablate(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let Some(Ablation { state, fp, timer, lists, traps }) = vcpu.vm().techniques.ablate else { return };
    if state {
        // The context is otherwise unused until put, which overwrites it.
        move_state(cpu.loaded().context());
    }
    if fp {
        move_fp(cpu.loaded().context());
    }
    if timer {
        move_timers();
    }
    if lists {
        move_lists(cpu.index, vcpu);
    }
    if traps {
        toggle_traps();
    }
}

/// Called between the two halves, where the exit path proper would run with the state in memory.
#[inline(always)]
fn between<T>(taken: &mut T) {
    core::hint::black_box(taken);
}

/// Saves and restores EL1's registers and the keys, as put and load do.
#[inline(never)]
fn move_state(context: &mut VcpuContext) {
    let have = features::get();
    registers::put(&mut context.el1);
    // Not in the context, which keeps those of a vCPU that has not used them: then the CPU's are another one's.
    let mut keys = [0; registers::KEYS];
    if have.pauth {
        registers::save_keys(&mut keys);
    }
    between(context);
    between(&mut keys);
    registers::load(&context.el1);
    if have.pauth {
        registers::load_keys(&keys);
    }
}

/// Saves and restores FP, SIMD and SVE registers as put and load do, if the vCPU has them in the CPU.
#[inline(never)]
fn move_fp(context: &mut VcpuContext) {
    if context.fp.is_live() {
        context.fp.save();
        between(context);
        context.fp.fetch();
    }
}

/// Reads, stops and restarts EL1's timers. An expired timer deasserts in between, so that its exit may find no
/// interrupt.
#[inline(never)]
fn move_timers() {
    let vhe = features::get().vhe;
    let mut timers = if vhe {
        let virt = (read_sysreg!(CNTV_CTL_EL02), read_sysreg!(CNTV_CVAL_EL02));
        (virt, (read_sysreg!(CNTP_CTL_EL02), read_sysreg!(CNTP_CVAL_EL02)))
    } else {
        let virt = (read_sysreg!(CNTV_CTL_EL0), read_sysreg!(CNTV_CVAL_EL0));
        (virt, (read_sysreg!(CNTP_CTL_EL0), read_sysreg!(CNTP_CVAL_EL0)))
    };
    interrupts::stop_timers(TIMER_ENABLE);
    isb();
    between(&mut timers);
    let ((virt, virt_at), (physical, physical_at)) = timers;
    if vhe {
        write_sysreg!(CNTV_CVAL_EL02, virt_at);
        write_sysreg!(CNTV_CTL_EL02, virt);
        write_sysreg!(CNTP_CVAL_EL02, physical_at);
        write_sysreg!(CNTP_CTL_EL02, physical);
    } else {
        write_sysreg!(CNTV_CVAL_EL0, virt_at);
        write_sysreg!(CNTV_CTL_EL0, virt);
        write_sysreg!(CNTP_CVAL_EL0, physical_at);
        write_sysreg!(CNTP_CTL_EL0, physical);
    }
}

/// Reads the virtual CPU interface (list registers, active priorities, VMCR), disables and empties it, and writes
/// everything back.
#[inline(never)]
fn move_lists(cpu: usize, vcpu: &Vcpu) {
    let mut interface = Interface::new(cpu, vcpu);
    let count = interface::shape().list_registers;
    let mut lists: Lists = [const { MaybeUninit::uninit() }; 16];
    interface::take_lists(&mut lists, count);
    let mut others = (read_gic!(ICH_HCR_EL2), interface.read_state());
    interface.disable();
    isb();
    between(&mut lists);
    between(&mut others);
    let (control, (vmcr, ap0r, ap1r)) = others;
    interface.write_state(vmcr, &ap0r, &ap1r);
    // SAFETY: `take_lists` filled the first `count` list registers' values above.
    unsafe { interface::restore_lists(&lists, count) };
    write_gic!(ICH_HCR_EL2, control);
}

/// Disables guest traps and the second stage in HCR_EL2, CPTR_EL2 and MDCR_EL2, as for a host at EL1, and restores
/// them.
#[inline(never)]
fn toggle_traps() {
    /// HCR_EL2.RW, E2H.
    const HOST: u64 = 1 << 31 | 1 << 34;
    /// CPTR_EL2.TAM, and TTA, whose position depends on VHE.
    const CPTR_TRAPS: (u64, u64) = (1 << 30 | 1 << 28, 1 << 30 | 1 << 20);
    let mut guest = [read_sysreg!(HCR_EL2), read_sysreg!(CPTR_EL2), read_sysreg!(MDCR_EL2), read_sysreg!(VTTBR_EL2)];
    let [hcr, cptr, mdcr, _] = guest;
    let cptr_traps = if features::get().vhe { CPTR_TRAPS.0 } else { CPTR_TRAPS.1 };
    // The VMID changes first and is restored last: no TLB entry without second-stage translation may carry the VM's
    // VMID.
    second_stage::leave();
    write_sysreg!(HCR_EL2, hcr & HOST);
    write_sysreg!(CPTR_EL2, cptr & !cptr_traps);
    write_sysreg!(MDCR_EL2, mdcr & 0x1f); // HPMN
    isb();
    between(&mut guest);
    let [hcr, cptr, mdcr, second_stage] = guest;
    write_sysreg!(HCR_EL2, hcr);
    write_sysreg!(CPTR_EL2, cptr);
    write_sysreg!(MDCR_EL2, mdcr);
    isb();
    write_sysreg!(VTTBR_EL2, second_stage);
}
