//! Basic exit reasons (the manual, "VMX Basic Exit Reasons").

pub const EXCEPTION: u64 = 0;
pub const EXTERNAL_INTERRUPT: usize = 1;
pub const TRIPLE_FAULT: u64 = 2;
pub const INIT: u64 = 3;
pub const INTERRUPT_WINDOW: u64 = 7;
pub const NMI_WINDOW: u64 = 8;
pub const TASK_SWITCH: u64 = 9;
pub const CPUID: usize = 10;
pub const GETSEC: u64 = 11;
pub const HLT: usize = 12;
pub const INVD: u64 = 13;
pub const RDPMC: u64 = 15;
pub const RSM: u64 = 17;
pub const VMCALL: usize = 18;
pub const VMX_FIRST: usize = 19;
pub const VMRESUME: u64 = 24;
pub const VMX_LAST: usize = 27;
pub const CONTROL_REGISTER: u64 = 28;
pub const IO: usize = 30;
pub const RDMSR: usize = 31;
pub const WRMSR: usize = 32;
pub const MWAIT: u64 = 36;
pub const MONITOR_TRAP: u64 = 37;
pub const PAUSE: u64 = 40;
pub const MONITOR: u64 = 39;
/// TPR below threshold.
pub const PRIORITY: u64 = 43;
pub const APIC_ACCESS: u64 = 44;
/// Virtualized EOI.
pub const EOI: u64 = 45;
pub const EPT_VIOLATION: usize = 48;
pub const INVEPT: usize = 50;
pub const INVVPID: usize = 53;
pub const PREEMPTION_TIMER: u64 = 52;
pub const WBINVD: u64 = 54;
pub const XSETBV: u64 = 55;
pub const APIC_WRITE: u64 = 56;
pub const VMFUNC: u64 = 59;
/// Bit of the reason: the entry failed.
pub const ENTRY_FAILURE: u64 = 1 << 31;
