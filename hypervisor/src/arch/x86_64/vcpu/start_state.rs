//! Guest-state area of a vCPU at its start (the manual, "Processor State Following Power-up, Reset, or INIT"; other
//! modes by their boot protocols).

use super::cr0::{CACHING, ET, NE, PE, PG};
use crate::arch::x86_64::virt::state::{self, Field};

/// Kind of a vCPU's start. All-zero is the first one.
#[derive(Clone, Copy)]
#[repr(u64)]
pub enum Start {
    /// Real mode, at the start of a page below 1 MiB.
    Real { page: u8 },
    /// Protected mode without paging.
    Protected { pc: u64 },
    /// 64-bit mode.
    Long { pc: u64, tables: u64 },
    /// State of a snapshot, which is written after that of real mode.
    Saved,
}

/// Segment access rights (the manual, "Format of Access Rights").
mod rights {
    pub const CODE_32: u64 = 0xc09b;
    pub const CODE_64: u64 = 0xa09b;
    pub const CODE_16: u64 = 0x9b;
    pub const DATA_16: u64 = 0x93;
    pub const DATA: u64 = 0xc093;
    pub const TASK: u64 = 0x8b;
    pub const LDT: u64 = 0x82;
}

const PAE: u64 = 1 << 5;
const LME_LMA: u64 = 1 << 8 | 1 << 10;
/// The PAT after reset.
const PAT_RESET: u64 = 0x0007_0406_0007_0406;

/// State in the VMCS that INIT does not change.
#[derive(Clone, Copy)]
pub struct Kept {
    sysenter: [u64; 3],
    pat: u64,
    /// CR0.CD and NW, as the guest reads them.
    caching: u64,
}

const SYSENTER: [Field; 3] = [Field::GUEST_SYSENTER_CS, Field::GUEST_SYSENTER_ESP, Field::GUEST_SYSENTER_EIP];

impl Kept {
    /// After power-up or reset.
    pub const RESET: Kept = Kept { sysenter: [0; 3], pat: PAT_RESET, caching: CACHING };

    /// Reads it from the current VMCS.
    pub fn read() -> Kept {
        Kept { sysenter: SYSENTER.map(state::read), pat: state::read(Field::GUEST_PAT), caching: state::read(Field::CR0_SHADOW) & CACHING }
    }
}

impl Start {
    /// Writes the guest-state area. `tsc_offset`: the guest's TSC offset. `kept`: the state that INIT preserves.
    pub fn write(self, tsc_offset: u64, kept: &Kept) {
        let (pc, cr0, cr3, cr4, efer) = match self {
            Start::Real { .. } | Start::Saved => (0, ET | NE, 0, 0, 0),
            Start::Protected { pc } => (pc, PE | ET | NE, 0, 0, 0),
            Start::Long { pc, tables } => (pc, PE | ET | NE | PG, tables, PAE, LME_LMA),
        };
        let long = efer != 0;
        let shadow = if matches!(self, Start::Real { .. }) { ET | kept.caching } else { cr0 };
        match self {
            Start::Real { page } => write_segments((u64::from(page) << 8, rights::CODE_16), (0, rights::DATA_16), 0xffff),
            Start::Saved => write_segments((0, rights::CODE_16), (0, rights::DATA_16), 0xffff),
            Start::Protected { .. } => write_segments((CODE, rights::CODE_32), (DATA, rights::DATA), u32::MAX.into()),
            Start::Long { .. } => write_segments((CODE, rights::CODE_64), (DATA, rights::DATA), u32::MAX.into()),
        }
        let fields = [
            (Field::ENTRY_CONTROLS, state::entry_controls(long)),
            (Field::GUEST_CR0, cr0),
            (Field::CR0_SHADOW, shadow),
            (Field::GUEST_CR3, cr3),
            (Field::GUEST_CR4, cr4 | state::fixed_cr4()),
            (Field::CR4_SHADOW, cr4),
            (Field::GUEST_EFER, efer),
            (Field::GUEST_PAT, kept.pat),
            (Field::GUEST_RIP, pc),
            (Field::GUEST_RSP, 0),
            (Field::GUEST_RFLAGS, 1 << 1),
            (Field::GUEST_DR7, 0x400),
            (Field::GUEST_DEBUGCTL, 0),
            (Field::GUEST_INTERRUPTIBILITY, 0),
            (Field::GUEST_ACTIVITY, 0),
            (Field::GUEST_PENDING_DEBUG, 0),
            (Field::TSC_OFFSET, tsc_offset),
        ];
        for (field, value) in fields.into_iter().chain(SYSENTER.into_iter().zip(kept.sysenter)) {
            state::write(field, value);
        }
    }
}

/// Code selector of the boot protocols.
const CODE: u64 = 0x10;
/// Data selector of the boot protocols.
const DATA: u64 = 0x18;

/// Segments: selector and access rights of code and of data. All are flat except real mode's code segment, whose
/// selector determines its base.
fn write_segments(code: (u64, u64), data: (u64, u64), limit: u64) {
    let data_segments = [
        (Field::GUEST_ES, Field::GUEST_ES_BASE, Field::GUEST_ES_LIMIT, Field::GUEST_ES_RIGHTS),
        (Field::GUEST_SS, Field::GUEST_SS_BASE, Field::GUEST_SS_LIMIT, Field::GUEST_SS_RIGHTS),
        (Field::GUEST_DS, Field::GUEST_DS_BASE, Field::GUEST_DS_LIMIT, Field::GUEST_DS_RIGHTS),
        (Field::GUEST_FS, Field::GUEST_FS_BASE, Field::GUEST_FS_LIMIT, Field::GUEST_FS_RIGHTS),
        (Field::GUEST_GS, Field::GUEST_GS_BASE, Field::GUEST_GS_LIMIT, Field::GUEST_GS_RIGHTS),
    ];
    for (selector, base, size, access) in data_segments {
        state::write(selector, data.0);
        state::write(base, 0);
        state::write(size, limit);
        state::write(access, data.1);
    }
    let fields = [
        (Field::GUEST_CS, code.0),
        (Field::GUEST_CS_BASE, if limit == 0xffff { code.0 << 4 } else { 0 }),
        (Field::GUEST_CS_LIMIT, limit),
        (Field::GUEST_CS_RIGHTS, code.1),
        (Field::GUEST_TR, 0),
        (Field::GUEST_TR_BASE, 0),
        (Field::GUEST_TR_LIMIT, 0xffff),
        (Field::GUEST_TR_RIGHTS, rights::TASK),
        (Field::GUEST_LDTR, 0),
        (Field::GUEST_LDTR_BASE, 0),
        (Field::GUEST_LDTR_LIMIT, 0xffff),
        (Field::GUEST_LDTR_RIGHTS, rights::LDT),
        (Field::GUEST_GDTR_BASE, 0),
        (Field::GUEST_GDTR_LIMIT, 0xffff),
        (Field::GUEST_IDTR_BASE, 0),
        (Field::GUEST_IDTR_LIMIT, 0xffff),
    ];
    for (field, value) in fields {
        state::write(field, value);
    }
}
