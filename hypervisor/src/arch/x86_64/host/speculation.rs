//! Mitigations of speculative-execution attacks: chosen by crate `stile-speculation`, applied here and by the mitigated exit
//! paths (`vmx/exit/mitigated.S`, lines with `//@cleared` in `svm/exit.S`).

use core::sync::atomic::{AtomicU8, Ordering};

use stile_blob::Mitigations;
use stile_board::MAX_CPUS;
use stile_speculation::x86_64::amd::Amd;
use stile_speculation::x86_64::{Data, Identity, Plan, Targets, control, leaf_7};

use super::cpu::Cpu;
use super::instructions::{cpuid, msr, rdmsr, wrmsr};
use crate::console::log;
use crate::once::Once;

/// Bits of [`FLAGS`]: exits and entries go through the mitigated exit path.
const AT_EXITS: u8 = 1 << 0;
/// IA32_SPEC_CTRL.IBRS is set at each exit.
pub const IBRS_AT_EXITS: u8 = 1 << 1;
/// IA32_SPEC_CTRL.IBRS is set at boot.
const IBRS_ONCE: u8 = 1 << 2;
/// The L1 data cache is flushed at each entry.
pub const FLUSH_L1D: u8 = 1 << 3;
/// CPUs have IA32_SPEC_CTRL and IA32_PRED_CMD: guests have them, too, and switches to another VM are barriers.
const BARRIER: u8 = 1 << 4;
/// IBPB at each exit.
pub const BARRIER_AT_EXITS: u8 = 1 << 5;
/// EFER.AIBRSE is set at boot.
const AUTOMATIC_IBRS: u8 = 1 << 6;
/// BP_CFG.BP_SPEC_REDUCE is set at boot.
const REDUCED: u8 = 1 << 7;

/// Mitigations in force on all CPUs: set once, before the first guest runs.
pub static FLAGS: AtomicU8 = AtomicU8::new(0);

/// IA32_PRED_CMD.IBPB.
pub const IBPB: u64 = 1;

/// A register of AMD's, and its bit for predictors that guests share with their host.
const BP_CFG: u32 = 0xc001_102e;
const BP_SPEC_REDUCE: u64 = 1 << 4;
/// EFER.AIBRSE.
const AIBRSE: u64 = 1 << 21;

/// VM that ran last on each CPU; [`u8::MAX`] if none.
static LAST_VM: [AtomicU8; MAX_CPUS] = [const { AtomicU8::new(u8::MAX) }; MAX_CPUS];

static FIRST: Once<Identity> = Once::new();

/// Records the boot CPU's vulnerabilities.
pub fn setup_first() {
    FIRST.set(identity());
}

/// Whether this CPU has the boot CPU's vulnerabilities.
pub fn is_like_first() -> bool {
    identity() == *FIRST.get()
}

fn identity() -> Identity {
    let leaf_7_edx = if cpuid(0, 0).eax >= 7 { cpuid(7, 0).edx } else { 0 };
    let has_capabilities = leaf_7_edx & leaf_7::ARCH_CAPABILITIES != 0;
    let capabilities = if has_capabilities {
        // SAFETY: CPUID enumerates the register, and reads have no side effects.
        unsafe { rdmsr(msr::IA32_ARCH_CAPABILITIES) }
    } else {
        0
    };
    Identity { leaf_7_edx, capabilities, amd: amd() }
}

/// Identification of a processor of AMD's or of Hygon's.
fn amd() -> Option<Amd> {
    /// EBX of leaf 0: the first four characters of the vendor's name.
    const VENDORS: [[u8; 4]; 2] = [*b"Auth", *b"Hygo"];
    if !VENDORS.contains(&cpuid(0, 0).ebx.to_le_bytes()) {
        return None;
    }
    let highest = cpuid(0x8000_0000, 0).eax;
    let version = cpuid(1, 0).eax;
    let sizes = if highest >= 0x8000_0008 { cpuid(0x8000_0008, 0).ebx } else { 0 };
    let (leaf_21_eax, leaf_21_ecx) = if highest >= 0x8000_0021 {
        let leaf = cpuid(0x8000_0021, 0);
        (leaf.eax, leaf.ecx)
    } else {
        (0, 0)
    };
    // The extended family counts if the family is 0FH, as it is on all of them.
    Some(Amd { family: (version >> 8 & 0xf) + (version >> 20 & 0xff), leaf_8_ebx: sizes, leaf_21_eax, leaf_21_ecx })
}

/// The mitigations that the boot CPU needs, or all that it can execute.
fn plan(mode: Mitigations) -> Plan {
    match mode {
        Mitigations::Auto | Mitigations::Off => Plan::new(FIRST.get()),
        Mitigations::All => Plan::all(FIRST.get()),
    }
}

/// Whether [`apply`] will make exits and entries go through the mitigated exit path.
pub fn needs_at_exits(mode: Mitigations) -> bool {
    mode != Mitigations::Off && plan(mode).is_needed_at_exits()
}

/// Applies mitigations before the first guest runs, and logs them. CPUs that differ from the boot CPU are not used.
pub fn apply(mode: Mitigations) {
    let plan = plan(mode);
    if mode == Mitigations::Off {
        return log!("speculation: mitigations are off; needed: {plan}");
    }
    let flags = [
        (plan.is_needed_at_exits(), AT_EXITS),
        (plan.targets == Targets::SetAtExits, IBRS_AT_EXITS),
        (plan.targets == Targets::SetOnce, IBRS_ONCE),
        (plan.l1d == Data::ClearedAtEntry, FLUSH_L1D),
        (plan.barrier, BARRIER),
        (plan.targets == Targets::BarrierAtExits, BARRIER_AT_EXITS),
        // For free, whatever else is needed.
        (FIRST.get().amd.is_some_and(|amd| amd.has_automatic_ibrs()), AUTOMATIC_IBRS),
        (FIRST.get().amd.is_some_and(|amd| amd.reduces()), REDUCED),
    ];
    FLAGS.store(flags.into_iter().filter(|flag| flag.0).map(|flag| flag.1).sum(), Ordering::Release);
    log!("speculation: {plan}");
}

fn applies(flag: u8) -> bool {
    FLAGS.load(Ordering::Acquire) & flag != 0
}

/// Whether exits and entries go through the mitigated exit path.
pub fn is_needed_at_exits() -> bool {
    applies(AT_EXITS)
}

/// Enables permanent mitigations before the first guest of this CPU, whose vCPU is loaded.
pub fn enter_first(cpu: &mut Cpu) {
    set_control(cpu, cpu.spec_ctrl);
    // SAFETY: CPUID enumerates the bit of EFER (AUTOMATIC_IBRS) and that of BP_CFG (REDUCED); both only restrict speculation.
    unsafe {
        if applies(AUTOMATIC_IBRS) {
            wrmsr(msr::IA32_EFER, rdmsr(msr::IA32_EFER) | AIBRSE);
        }
        if applies(REDUCED) {
            wrmsr(BP_CFG, rdmsr(BP_CFG) | BP_SPEC_REDUCE);
        }
    }
}

/// Called when a vCPU is loaded, with its IA32_SPEC_CTRL: another VM's branch targets must not steer it.
#[inline(always)]
pub fn load(cpu: &mut Cpu, vm: usize, guest: impl FnOnce() -> u64) {
    if applies(BARRIER) {
        let guest = guest();
        switch_vm(cpu, vm, guest);
    }
}

#[cold]
#[inline(never)]
fn switch_vm(cpu: &mut Cpu, vm: usize, guest: u64) {
    if LAST_VM[cpu.index % MAX_CPUS].swap(vm as u8, Ordering::Relaxed) != vm as u8 {
        barrier();
    }
    set_control(cpu, guest);
}

/// Invalidates the branch targets of this CPU, which has IA32_PRED_CMD.
pub fn barrier() {
    // SAFETY: CPUID enumerates the register (BARRIER); the barrier only restricts speculation.
    unsafe { wrmsr(msr::IA32_PRED_CMD, IBPB) };
}

/// Sets IA32_SPEC_CTRL to a guest's value and Stile's own: each bit only restricts speculation, so that Stile and its
/// guest may both run with those of the other.
pub fn set_control(cpu: &mut Cpu, guest: u64) {
    let own = if applies(IBRS_ONCE | IBRS_AT_EXITS) { control::IBRS } else { 0 };
    let value = guest | own;
    if cpu.spec_ctrl != value {
        cpu.spec_ctrl = value;
        // SAFETY: the plan, or `guests`, requires that CPUID enumerates the register and these bits.
        unsafe { wrmsr(msr::IA32_SPEC_CTRL, value) };
    }
}

/// The CPUs' identification as far as guests see it: none if mitigations are off.
pub fn guests() -> Identity {
    if applies(BARRIER) { *FIRST.get() } else { Identity::default() }
}

/// Called when a VM's number is reused: the next vCPU on each CPU counts as one of another VM.
pub fn forget_vm(cpu: usize) {
    LAST_VM[cpu % MAX_CPUS].store(u8::MAX, Ordering::Relaxed);
}
