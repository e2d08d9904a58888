//! The condition under which L1 sees an exit, by exit reason.

use crate::controls::{pin, primary, secondary};

/// The condition under which L1 sees an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Unconditionally.
    Always,
    /// Never: the exit is L0's.
    Never,
    /// If a pin-based control is set.
    Pin(u32),
    /// If a primary control is set.
    Primary(u32),
    /// If a secondary control is set.
    Secondary(u32),
    /// If both a primary and a secondary control are set.
    Both(u32, u32),
    /// If a primary or a secondary control is set.
    Either(u32, u32),
    /// By the exception bitmap.
    Exception,
    /// By masks, shadows, targets and controls.
    ControlRegister,
    /// By the I/O bitmaps.
    Port,
    /// By the MSR bitmap.
    Msr {
        /// WRMSR rather than RDMSR.
        is_write: bool,
    },
    /// By L1's extended page tables.
    SecondStage,
    /// If L1 has set the monitor trap flag, or injects its exit: L0 sets the flag for itself, too.
    MonitorTrap,
}

use Condition::{Always, Both, ControlRegister, Either, Exception, MonitorTrap, Msr, Never, Pin, Port, Primary, SecondStage, Secondary};

/// Exit reasons (SDM, appendix "VMX Basic Exit Reasons").
const ROWS: &[(u16, &str, Condition)] = &[
    (0, "exception or NMI", Exception),
    // Interrupts that arrive while L2 runs are the machine's; L1's virtual ones become exits when they are delivered.
    (1, "external interrupt", Never),
    (2, "triple fault", Always),
    (3, "INIT", Never),
    (4, "SIPI", Never),
    (5, "I/O SMI", Never),
    (6, "other SMI", Never),
    (7, "interrupt window", Primary(primary::INTERRUPT_WINDOW)),
    (8, "NMI window", Primary(primary::NMI_WINDOW)),
    (9, "task switch", Always),
    (10, "CPUID", Always),
    (11, "GETSEC", Always),
    (12, "HLT", Primary(primary::HLT)),
    (13, "INVD", Always),
    (14, "INVLPG", Primary(primary::INVLPG)),
    (15, "RDPMC", Primary(primary::RDPMC)),
    (16, "RDTSC", Primary(primary::RDTSC)),
    (17, "RSM", Always),
    (18, "VMCALL", Always),
    (19, "VMCLEAR", Always),
    (20, "VMLAUNCH", Always),
    (21, "VMPTRLD", Always),
    (22, "VMPTRST", Always),
    (23, "VMREAD", Always),
    (24, "VMRESUME", Always),
    (25, "VMWRITE", Always),
    (26, "VMXOFF", Always),
    (27, "VMXON", Always),
    (28, "control-register access", ControlRegister),
    (29, "MOV DR", Primary(primary::MOV_DR)),
    (30, "I/O instruction", Port),
    (31, "RDMSR", Msr { is_write: false }),
    (32, "WRMSR", Msr { is_write: true }),
    // Rules that L0 does not check but the processor does.
    (33, "invalid guest state", Always),
    (34, "MSR loading", Never),
    (36, "MWAIT", Primary(primary::MWAIT)),
    (37, "monitor trap flag", MonitorTrap),
    (39, "MONITOR", Primary(primary::MONITOR)),
    (40, "PAUSE", Either(primary::PAUSE, secondary::PAUSE_LOOPS)),
    (41, "machine check during entry", Never),
    (43, "TPR below threshold", Primary(primary::TPR_SHADOW)),
    (44, "APIC access", Secondary(secondary::APIC_ACCESSES)),
    (45, "virtualized EOI", Secondary(secondary::INTERRUPT_DELIVERY)),
    (46, "GDTR or IDTR access", Secondary(secondary::DESCRIPTOR_TABLES)),
    (47, "LDTR or TR access", Secondary(secondary::DESCRIPTOR_TABLES)),
    (48, "EPT violation", SecondStage),
    (49, "EPT misconfiguration", SecondStage),
    (50, "INVEPT", Always),
    (51, "RDTSCP", Both(primary::RDTSC, secondary::RDTSCP)),
    (52, "preemption timer", Pin(pin::PREEMPTION_TIMER)),
    (53, "INVVPID", Always),
    (54, "WBINVD", Secondary(secondary::WBINVD)),
    (55, "XSETBV", Always),
    (56, "APIC write", Secondary(secondary::APIC_REGISTERS | secondary::INTERRUPT_DELIVERY)),
    (57, "RDRAND", Secondary(secondary::RDRAND)),
    (58, "INVPCID", Both(primary::INVLPG, secondary::INVPCID)),
    (59, "VMFUNC", Always),
    (61, "RDSEED", Secondary(secondary::RDSEED)),
    (62, "page-modification log full", Never),
];

const COUNT: usize = 64;

static CONDITIONS: [Condition; COUNT] = {
    let mut all = [Never; COUNT];
    let mut seen = 0u64;
    let mut at = 0;
    while at < ROWS.len() {
        let reason = ROWS[at].0;
        assert!(seen >> reason & 1 == 0, "a reason is listed twice");
        seen |= 1 << reason;
        all[reason as usize] = ROWS[at].2;
        at += 1;
    }
    all
};

/// The condition for an exit reason. Unknown reasons are L0's.
pub fn condition(reason: u16) -> Condition {
    CONDITIONS.get(usize::from(reason)).copied().unwrap_or(Never)
}

/// Exit reasons of instructions that no guest's CPUID reports, but that exit on processors that have them, some whatever the controls
/// are: L0 raises #UD in their place.
const ABSENT_INSTRUCTIONS: &[(u16, &str)] = &[
    (60, "ENCLS"),
    (63, "XSAVES"),
    (64, "XRSTORS"),
    (65, "PCONFIG"),
    (67, "UMWAIT"),
    (68, "TPAUSE"),
    (69, "LOADIWKEY"),
    (70, "ENCLV"),
    (72, "ENQCMD, PASID translation"),
    (73, "ENQCMDS, PASID translation"),
    (76, "SEAMCALL"),
    (77, "TDCALL"),
    (78, "RDMSRLIST"),
    (79, "WRMSRLIST"),
];

/// Whether an instruction that no guest has causes this exit reason.
pub fn is_absent_instruction(reason: u64) -> bool {
    ABSENT_INSTRUCTIONS.iter().any(|&(absent, _)| u64::from(absent) == reason)
}
