//! Offsets of the fields (TLFS, "HV_VMX_ENLIGHTENED_VMCS"), by groups of the clean fields.

use super::clean;
use super::region::Region;
use crate::field::{Field, Width};
use crate::fields::{FIELDS, slot_of};
use crate::vmcs12::Vmcs12;

/// Place of a field.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The field.
    pub field: Field,
    /// Its offset in the page, in bytes.
    pub offset: usize,
    /// Bits of the clean fields: it is read unless all of them are set. None: it is read at each entry.
    pub clean: u32,
}

/// Copies a field from the page; its place is known to the compiler.
#[inline(always)]
fn load_field<const SLOT: usize, const OFFSET: usize>(vmcs: &mut Vmcs12, region: &impl Region) {
    vmcs.set_slot(SLOT, region.read(OFFSET, const { width::<SLOT, OFFSET>() }));
}

/// Copies a field to the page.
#[inline(always)]
fn store_field<const SLOT: usize, const OFFSET: usize>(vmcs: &Vmcs12, region: &impl Region) {
    region.write(OFFSET, const { width::<SLOT, OFFSET>() }, vmcs.get_slot(SLOT));
}

/// Offset of a field, as a constant.
const fn offset_of(field: Field) -> usize {
    let mut at = 0;
    while at < LAYOUT.len() + INFORMATION.len() {
        let place = if at < LAYOUT.len() { LAYOUT[at] } else { INFORMATION[at - LAYOUT.len()] };
        if place.field.0 == field.0 {
            return place.offset;
        }
        at += 1;
    }
    panic!("the layout lacks the field")
}

/// Width of the field with this slot, whose offset fits it.
const fn width<const SLOT: usize, const OFFSET: usize>() -> Width {
    let width = FIELDS[SLOT].field.width();
    assert!(OFFSET.is_multiple_of(bytes(width)) && OFFSET + bytes(width) <= 4096, "fields are aligned");
    width
}

/// Size of a field of this width in the page, in bytes.
pub(super) const fn bytes(width: Width) -> usize {
    match width {
        Width::Bits16 => 2,
        Width::Bits32 => 4,
        Width::Bits64 | Width::Natural => 8,
    }
}

macro_rules! layout {
    ($($clean:ident { $($name:ident = $offset:literal,)+ })+) => {
        /// Fields that L1 writes.
        pub const LAYOUT: &[Place] = &[$($(Place { field: Field::$name, offset: $offset, clean: clean::$clean },)+)+];

        /// Copies the fields of groups that are not in `clean` to `vmcs`. Those whose values differ count as changed.
        #[inline(always)]
        pub fn load(vmcs: &mut Vmcs12, region: &impl Region, clean: u32) {
            $(if clean::$clean == clean::NONE || clean & clean::$clean != clean::$clean {
                $(load_field::<{ slot_of(Field::$name) }, $offset>(vmcs, region);)+
            })+
        }
    };
}

macro_rules! stored {
    ($($(#[$comment:meta])* $function:ident, $list:ident { $($name:ident)+ })+) => {
        $(#[doc = concat!("Fields that [`", stringify!($function), "`] copies.")]
        pub const $list: &[Field] = &[$(Field::$name),+];

        $(#[$comment])*
        #[inline(always)]
        pub fn $function(vmcs: &Vmcs12, region: &impl Region) {
            $(store_field::<{ slot_of(Field::$name) }, { offset_of(Field::$name) }>(vmcs, region);)+
        })+
    };
}

macro_rules! information {
    ($count:literal: $($name:ident = $offset:literal,)+) => {
        /// Exit information, which L1 only reads.
        pub const INFORMATION: [Place; $count] = [$(Place { field: Field::$name, offset: $offset, clean: clean::NONE },)+];
    };
}

layout! {
    NONE {
        TPR_THRESHOLD = 0x32c,
        GUEST_RIP = 0x330,
    }
    IO_BITMAPS {
        IO_BITMAP_A = 0x068,
        IO_BITMAP_B = 0x070,
    }
    MSR_BITMAP {
        MSR_BITMAP = 0x078,
    }
    CONTROLS_2 {
        TSC_OFFSET = 0x190,
        VIRTUAL_APIC = 0x198,
    }
    CONTROLS_1 {
        PIN_CONTROLS = 0x05c,
        EXIT_CONTROLS = 0x060,
        SECONDARY_CONTROLS = 0x064,
    }
    PROCESSOR {
        PRIMARY_CONTROLS = 0x314,
    }
    EVENT {
        ENTRY_INTERRUPTION = 0x320,
        ENTRY_ERROR_CODE = 0x324,
        ENTRY_LENGTH = 0x328,
    }
    ENTRY {
        ENTRY_CONTROLS = 0x31c,
    }
    EXCEPTIONS {
        EXCEPTION_BITMAP = 0x318,
    }
    CONTROL_REGISTERS {
        CR0_MASK = 0x200,
        CR4_MASK = 0x208,
        CR0_SHADOW = 0x210,
        CR4_SHADOW = 0x218,
        GUEST_CR0 = 0x220,
        GUEST_CR3 = 0x228,
        GUEST_CR4 = 0x230,
        GUEST_DR7 = 0x238,
    }
    TRANSLATION {
        EPT_POINTER = 0x270,
        VPID = 0x278,
    }
    GUEST_BASIC {
        GUEST_RSP = 0x300,
        GUEST_RFLAGS = 0x308,
        GUEST_INTERRUPTIBILITY = 0x310,
    }
    GUEST_1 {
        VMCS_LINK = 0x1a0,
        GUEST_DEBUGCTL = 0x1a8,
        GUEST_PAT = 0x1b0,
        GUEST_EFER = 0x1b8,
        GUEST_PDPTE0 = 0x1c0,
        GUEST_PDPTE1 = 0x1c8,
        GUEST_PDPTE2 = 0x1d0,
        GUEST_PDPTE3 = 0x1d8,
        GUEST_PENDING_DEBUG = 0x1e0,
        GUEST_SYSENTER_ESP = 0x1e8,
        GUEST_SYSENTER_EIP = 0x1f0,
        GUEST_ACTIVITY = 0x1f8,
        GUEST_SYSENTER_CS = 0x1fc,
    }
    GUEST_2 {
        GUEST_ES = 0x080,
        GUEST_CS = 0x082,
        GUEST_SS = 0x084,
        GUEST_DS = 0x086,
        GUEST_FS = 0x088,
        GUEST_GS = 0x08a,
        GUEST_LDTR = 0x08c,
        GUEST_TR = 0x08e,
        GUEST_ES_LIMIT = 0x090,
        GUEST_CS_LIMIT = 0x094,
        GUEST_SS_LIMIT = 0x098,
        GUEST_DS_LIMIT = 0x09c,
        GUEST_FS_LIMIT = 0x0a0,
        GUEST_GS_LIMIT = 0x0a4,
        GUEST_LDTR_LIMIT = 0x0a8,
        GUEST_TR_LIMIT = 0x0ac,
        GUEST_GDTR_LIMIT = 0x0b0,
        GUEST_IDTR_LIMIT = 0x0b4,
        GUEST_ES_RIGHTS = 0x0b8,
        GUEST_CS_RIGHTS = 0x0bc,
        GUEST_SS_RIGHTS = 0x0c0,
        GUEST_DS_RIGHTS = 0x0c4,
        GUEST_FS_RIGHTS = 0x0c8,
        GUEST_GS_RIGHTS = 0x0cc,
        GUEST_LDTR_RIGHTS = 0x0d0,
        GUEST_TR_RIGHTS = 0x0d4,
        GUEST_ES_BASE = 0x0d8,
        GUEST_CS_BASE = 0x0e0,
        GUEST_SS_BASE = 0x0e8,
        GUEST_DS_BASE = 0x0f0,
        GUEST_FS_BASE = 0x0f8,
        GUEST_GS_BASE = 0x100,
        GUEST_LDTR_BASE = 0x108,
        GUEST_TR_BASE = 0x110,
        GUEST_GDTR_BASE = 0x118,
        GUEST_IDTR_BASE = 0x120,
    }
    HOST_POINTERS {
        HOST_FS_BASE = 0x240,
        HOST_GS_BASE = 0x248,
        HOST_TR_BASE = 0x250,
        HOST_GDTR_BASE = 0x258,
        HOST_IDTR_BASE = 0x260,
        HOST_RSP = 0x268,
    }
    HOST_1 {
        HOST_ES = 0x008,
        HOST_CS = 0x00a,
        HOST_SS = 0x00c,
        HOST_DS = 0x00e,
        HOST_FS = 0x010,
        HOST_GS = 0x012,
        HOST_TR = 0x014,
        HOST_PAT = 0x018,
        HOST_EFER = 0x020,
        HOST_CR0 = 0x028,
        HOST_CR3 = 0x030,
        HOST_CR4 = 0x038,
        HOST_SYSENTER_ESP = 0x040,
        HOST_SYSENTER_EIP = 0x048,
        HOST_RIP = 0x050,
        HOST_SYSENTER_CS = 0x058,
    }
    ALL {
        EXIT_MSR_STORE_AREA = 0x140,
        EXIT_MSR_LOAD_AREA = 0x148,
        ENTRY_MSR_LOAD_AREA = 0x150,
        CR3_TARGET_0 = 0x158,
        CR3_TARGET_1 = 0x160,
        CR3_TARGET_2 = 0x168,
        CR3_TARGET_3 = 0x170,
        PAGE_FAULT_MASK = 0x178,
        PAGE_FAULT_MATCH = 0x17c,
        CR3_TARGETS = 0x180,
        EXIT_MSR_STORES = 0x184,
        EXIT_MSR_LOADS = 0x188,
        ENTRY_MSR_LOADS = 0x18c,
    }
}

information! {
    14:
    GUEST_PHYSICAL = 0x2a8,
    EXIT_REASON = 0x2b4,
    EXIT_INTERRUPTION = 0x2b8,
    EXIT_INTERRUPTION_CODE = 0x2bc,
    VECTORING = 0x2c0,
    VECTORING_CODE = 0x2c4,
    EXIT_LENGTH = 0x2c8,
    EXIT_INSTRUCTION = 0x2cc,
    EXIT_QUALIFICATION = 0x2d0,
    IO_RCX = 0x2d8,
    IO_RSI = 0x2e0,
    IO_RDI = 0x2e8,
    IO_RIP = 0x2f0,
    GUEST_LINEAR = 0x2f8,
}

stored! {
    /// Copies exit information to the page. Exits leave the fields of I/O in SMM undefined: these are not copied.
    store_information, STORED_INFORMATION {
        EXIT_REASON EXIT_QUALIFICATION EXIT_INTERRUPTION EXIT_INTERRUPTION_CODE VECTORING VECTORING_CODE EXIT_LENGTH EXIT_INSTRUCTION
        GUEST_LINEAR GUEST_PHYSICAL
    }

    /// Copies the state that an exit of L2 saves to the page, and the controls that it changes.
    store_guest, STORED_GUEST {
        ENTRY_INTERRUPTION ENTRY_CONTROLS
        GUEST_RIP GUEST_CR0 GUEST_CR3 GUEST_CR4 GUEST_DR7 GUEST_RSP GUEST_RFLAGS GUEST_INTERRUPTIBILITY GUEST_DEBUGCTL GUEST_PAT
        GUEST_EFER GUEST_PDPTE0 GUEST_PDPTE1 GUEST_PDPTE2 GUEST_PDPTE3 GUEST_PENDING_DEBUG GUEST_SYSENTER_ESP GUEST_SYSENTER_EIP
        GUEST_ACTIVITY GUEST_SYSENTER_CS GUEST_ES GUEST_CS GUEST_SS GUEST_DS GUEST_FS GUEST_GS GUEST_LDTR GUEST_TR GUEST_ES_LIMIT
        GUEST_CS_LIMIT GUEST_SS_LIMIT GUEST_DS_LIMIT GUEST_FS_LIMIT GUEST_GS_LIMIT GUEST_LDTR_LIMIT GUEST_TR_LIMIT
        GUEST_GDTR_LIMIT GUEST_IDTR_LIMIT GUEST_ES_RIGHTS GUEST_CS_RIGHTS GUEST_SS_RIGHTS GUEST_DS_RIGHTS GUEST_FS_RIGHTS
        GUEST_GS_RIGHTS GUEST_LDTR_RIGHTS GUEST_TR_RIGHTS GUEST_ES_BASE GUEST_CS_BASE GUEST_SS_BASE GUEST_DS_BASE GUEST_FS_BASE
        GUEST_GS_BASE GUEST_LDTR_BASE GUEST_TR_BASE GUEST_GDTR_BASE GUEST_IDTR_BASE
    }
}
