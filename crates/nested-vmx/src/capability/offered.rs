//! Controls that Stile implements for L1, where the processor has them. A control that is added here goes into VMCS02 as L1 sets it, unless
//! the hypervisor composes it (`arch/x86_64/vmx/nested/merge.rs`).

use super::bits::{ept_vpid, misc};
use crate::controls::{entry, exit, pin, primary, secondary};

/// Pin-based controls.
pub const PIN: u32 = pin::EXTERNAL_INTERRUPTS | pin::NMIS | pin::VIRTUAL_NMIS | pin::PREEMPTION_TIMER | pin::POSTED_INTERRUPTS;
/// Primary processor-based controls.
pub const PRIMARY: u32 = primary::INTERRUPT_WINDOW
    | primary::TSC_OFFSET
    | primary::HLT
    | primary::INVLPG
    | primary::MWAIT
    | primary::RDPMC
    | primary::RDTSC
    | primary::CR3_LOAD
    | primary::CR3_STORE
    | primary::CR8_LOAD
    | primary::CR8_STORE
    | primary::TPR_SHADOW
    | primary::NMI_WINDOW
    | primary::MOV_DR
    | primary::UNCONDITIONAL_IO
    | primary::IO_BITMAPS
    | primary::MONITOR_TRAP
    | primary::MSR_BITMAPS
    | primary::MONITOR
    | primary::PAUSE
    | primary::SECONDARY;
/// Secondary processor-based controls.
pub const SECONDARY: u32 = secondary::APIC_ACCESSES
    | secondary::EPT
    | secondary::DESCRIPTOR_TABLES
    | secondary::RDTSCP
    | secondary::X2APIC_MODE
    | secondary::VPID
    | secondary::WBINVD
    | secondary::UNRESTRICTED_GUEST
    | secondary::APIC_REGISTERS
    | secondary::INTERRUPT_DELIVERY
    | secondary::RDRAND
    | secondary::INVPCID
    | secondary::RDSEED;
pub(super) const EXIT: u32 = exit::SAVE_DEBUG
    | exit::HOST_64
    | exit::ACKNOWLEDGE_INTERRUPT
    | exit::SAVE_PAT
    | exit::LOAD_PAT
    | exit::SAVE_EFER
    | exit::LOAD_EFER
    | exit::SAVE_PREEMPTION_TIMER;
pub(super) const ENTRY: u32 = entry::LOAD_DEBUG | entry::IA32E_GUEST | entry::LOAD_PAT | entry::LOAD_EFER;
pub(super) const MISC: u64 = misc::TIMER_RATE | misc::STORES_LMA | misc::HLT | misc::ZERO_LENGTH;
/// Features that Stile implements on every processor.
pub(super) const EMULATED_MISC: u64 = misc::CR3_TARGETS | misc::WRITE_ANY;
/// Shadow tables and their invalidation are Stile's own: page sizes of L1's tables need nothing of the processor.
pub(super) const EMULATED_EPT: u64 = ept_vpid::WALK_4
    | ept_vpid::WRITE_BACK
    | ept_vpid::PAGES_2M
    | ept_vpid::PAGES_1G
    | ept_vpid::INVEPT
    | ept_vpid::INVEPT_SINGLE
    | ept_vpid::INVEPT_ALL;
/// The processor treats accesses to L2's own tables as writes where this is enabled: Stile can't tell them.
pub(super) const EPT: u64 = ept_vpid::ACCESSED_DIRTY;
pub(super) const EMULATED_VPID: u64 = ept_vpid::INVVPID | ept_vpid::INVVPID_TYPES;
pub(super) const VM_FUNCTIONS: u64 = 0;
