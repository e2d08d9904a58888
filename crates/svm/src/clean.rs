//! Clean bits: the parts of a VMCB that the processor may keep from the last entry (the manual, "VMCB Clean Bits").

/// Intercepts, TSC offset, pause filter.
pub const INTERCEPTS: u32 = 1 << 0;
/// Addresses of the permission maps.
pub const PERMISSION_MAPS: u32 = 1 << 1;
/// ASID.
pub const ASID: u32 = 1 << 2;
/// Virtual interrupt: V_TPR, V_IRQ and others of the same word.
pub const INTERRUPT: u32 = 1 << 3;
/// Nested paging: its root, and the guest's PAT.
pub const NESTED_PAGING: u32 = 1 << 4;
/// CR0, CR3, CR4, EFER.
pub const CONTROL_REGISTERS: u32 = 1 << 5;
/// DR6 and DR7.
pub const DEBUG_REGISTERS: u32 = 1 << 6;
/// GDTR and IDTR.
pub const DESCRIPTOR_TABLES: u32 = 1 << 7;
/// ES, CS, SS, DS and CPL.
pub const SEGMENTS: u32 = 1 << 8;
/// CR2.
pub const CR2: u32 = 1 << 9;
/// DEBUGCTL and last branches.
pub const LAST_BRANCHES: u32 = 1 << 10;
/// Fields that the processor reads at each entry: no bit.
pub const NONE: u32 = 0;
/// All parts. Processors ignore bits that they do not have.
pub const ALL: u32 = u32::MAX;
