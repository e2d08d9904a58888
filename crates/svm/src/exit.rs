//! Exit codes ("SVM Intercept Exit Codes").

#![allow(missing_docs, reason = "the manual's names")]

pub const CR_WRITE: u64 = 0x10;
pub const EXCEPTION: u64 = 0x40;
pub const INTR: u64 = 0x60;
pub const NMI: u64 = 0x61;
pub const SMI: u64 = 0x62;
pub const INIT: u64 = 0x63;
pub const VINTR: u64 = 0x64;
/// A write of CR0 that changes bits other than TS and MP.
pub const CR0_WRITE: u64 = 0x65;
pub const RDPMC: u64 = 0x6f;
pub const CPUID: u64 = 0x72;
pub const RSM: u64 = 0x73;
pub const IRET: u64 = 0x74;
pub const INVD: u64 = 0x76;
pub const PAUSE: u64 = 0x77;
pub const HLT: u64 = 0x78;
pub const INVLPGA: u64 = 0x7a;
pub const IO: u64 = 0x7b;
pub const MSR: u64 = 0x7c;
pub const TASK_SWITCH: u64 = 0x7d;
pub const SHUTDOWN: u64 = 0x7f;
pub const VMRUN: u64 = 0x80;
pub const VMMCALL: u64 = 0x81;
pub const VMLOAD: u64 = 0x82;
pub const SKINIT: u64 = 0x86;
pub const WBINVD: u64 = 0x89;
pub const MONITOR: u64 = 0x8a;
pub const MWAIT: u64 = 0x8b;
pub const MWAIT_ARMED: u64 = 0x8c;
pub const XSETBV: u64 = 0x8d;
pub const RDPRU: u64 = 0x8e;
pub const INVLPGB: u64 = 0xa0;
pub const TLBSYNC: u64 = 0xa4;
pub const NPF: u64 = 0x400;
/// The entry failed: the VMCB is invalid. All bits are ones.
pub const INVALID: u64 = u64::MAX;
/// [`INVALID`] as QEMU reports it, in 32 bits.
pub const INVALID_OF_32_BITS: u64 = u32::MAX as u64;
