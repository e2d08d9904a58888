//! The VMCS fields (SDM, appendix "Field Encoding in VMCS"): for each its encoding, the group in which changes are tracked, and the control
//! without which the processor has no such field.

use crate::controls::{pin, primary, secondary};
use crate::field::{Field, Kind};
use crate::group::Group;

/// The control that must be allowed for a field to exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// None: every processor has the field.
    Nothing,
    /// A pin-based control.
    Pin(u32),
    /// A primary processor-based control.
    Primary(u32),
    /// A secondary processor-based control.
    Secondary(u32),
}

/// A row of the table of fields.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The field.
    pub field: Field,
    /// Its name.
    pub name: &'static str,
    /// Its group.
    pub group: Group,
    /// The control without which it does not exist.
    pub needs: Needs,
}

macro_rules! fields {
    ($($group:ident $needs:tt { $($name:ident = $encoding:literal),+ $(,)? })+) => {
        impl Field {
            $($(#[doc = stringify!($name)] pub const $name: Field = Field($encoding);)+)+
        }

        /// All fields. A row's number is the field's slot.
        pub const FIELDS: &[Row] = &[
            $($(Row { field: Field::$name, name: stringify!($name), group: Group::$group, needs: fields!(@ $needs) },)+)+
        ];
    };
    (@ always) => { Needs::Nothing };
    (@ ($kind:ident, $bit:expr)) => { Needs::$kind($bit) };
}

fields! {
    Execution always {
        PIN_CONTROLS = 0x4000,
        PRIMARY_CONTROLS = 0x4002,
        EXCEPTION_BITMAP = 0x4004,
        PAGE_FAULT_MASK = 0x4006,
        PAGE_FAULT_MATCH = 0x4008,
        EXECUTIVE_VMCS = 0x200c,
    }
    Execution (Primary, primary::IO_BITMAPS) {
        IO_BITMAP_A = 0x2000,
        IO_BITMAP_B = 0x2002,
    }
    Execution (Primary, primary::MSR_BITMAPS) { MSR_BITMAP = 0x2004 }
    Execution (Primary, primary::TSC_OFFSET) { TSC_OFFSET = 0x2010 }
    Execution (Primary, primary::TPR_SHADOW) { VIRTUAL_APIC = 0x2012 }
    Execution (Primary, primary::SECONDARY) { SECONDARY_CONTROLS = 0x401e }
    Execution (Secondary, secondary::VPID) { VPID = 0x0000 }
    Execution (Secondary, secondary::APIC_ACCESSES) { APIC_ACCESS = 0x2014 }
    Execution (Secondary, secondary::EPT) { EPT_POINTER = 0x201a }
    Execution (Pin, pin::POSTED_INTERRUPTS) {
        POSTED_INTERRUPT_VECTOR = 0x0002,
        POSTED_INTERRUPTS = 0x2016,
    }
    Execution (Secondary, secondary::INTERRUPT_DELIVERY) {
        EOI_EXIT_0 = 0x201c,
        EOI_EXIT_1 = 0x201e,
        EOI_EXIT_2 = 0x2020,
        EOI_EXIT_3 = 0x2022,
    }
    Execution (Secondary, secondary::PAUSE_LOOPS) {
        PAUSE_GAP = 0x4020,
        PAUSE_WINDOW = 0x4022,
    }
    Execution (Secondary, secondary::VM_FUNCTIONS) {
        VM_FUNCTION_CONTROLS = 0x2018,
        EPTP_LIST = 0x2024,
    }
    Execution (Secondary, secondary::VMCS_SHADOWING) {
        VMREAD_BITMAP = 0x2026,
        VMWRITE_BITMAP = 0x2028,
    }
    Execution (Secondary, secondary::EPT_VIOLATION_VE) {
        EPTP_INDEX = 0x0004,
        VIRTUALIZATION_EXCEPTION = 0x202a,
    }
    Execution (Secondary, secondary::PAGE_MODIFICATION_LOG) { PAGE_MODIFICATION_LOG = 0x200e }
    Execution (Secondary, secondary::XSAVES) { XSS_EXITING = 0x202c }
    Execution (Secondary, secondary::TSC_SCALING) { TSC_MULTIPLIER = 0x2032 }
    Exit always {
        EXIT_CONTROLS = 0x400c,
        EXIT_MSR_STORES = 0x400e,
        EXIT_MSR_LOADS = 0x4010,
        EXIT_MSR_STORE_AREA = 0x2006,
        EXIT_MSR_LOAD_AREA = 0x2008,
    }
    Entry always {
        ENTRY_CONTROLS = 0x4012,
        ENTRY_MSR_LOADS = 0x4014,
        ENTRY_MSR_LOAD_AREA = 0x200a,
    }
    Event always {
        ENTRY_INTERRUPTION = 0x4016,
        ENTRY_ERROR_CODE = 0x4018,
        ENTRY_LENGTH = 0x401a,
    }
    Masks always {
        CR0_MASK = 0x6000,
        CR4_MASK = 0x6002,
        CR0_SHADOW = 0x6004,
        CR4_SHADOW = 0x6006,
        CR3_TARGETS = 0x400a,
        CR3_TARGET_0 = 0x6008,
        CR3_TARGET_1 = 0x600a,
        CR3_TARGET_2 = 0x600c,
        CR3_TARGET_3 = 0x600e,
    }
    Threshold (Primary, primary::TPR_SHADOW) { TPR_THRESHOLD = 0x401c }
    Host always {
        HOST_ES = 0x0c00,
        HOST_CS = 0x0c02,
        HOST_SS = 0x0c04,
        HOST_DS = 0x0c06,
        HOST_FS = 0x0c08,
        HOST_GS = 0x0c0a,
        HOST_TR = 0x0c0c,
        HOST_PAT = 0x2c00,
        HOST_EFER = 0x2c02,
        HOST_SYSENTER_CS = 0x4c00,
        HOST_CR0 = 0x6c00,
        HOST_CR3 = 0x6c02,
        HOST_CR4 = 0x6c04,
        HOST_FS_BASE = 0x6c06,
        HOST_GS_BASE = 0x6c08,
        HOST_TR_BASE = 0x6c0a,
        HOST_GDTR_BASE = 0x6c0c,
        HOST_IDTR_BASE = 0x6c0e,
        HOST_SYSENTER_ESP = 0x6c10,
        HOST_SYSENTER_EIP = 0x6c12,
        HOST_RSP = 0x6c14,
        HOST_RIP = 0x6c16,
    }
    Registers always {
        GUEST_CR0 = 0x6800,
        GUEST_CR3 = 0x6802,
        GUEST_CR4 = 0x6804,
        GUEST_DR7 = 0x681a,
        GUEST_DEBUGCTL = 0x2802,
        GUEST_PAT = 0x2804,
        GUEST_EFER = 0x2806,
        GUEST_SYSENTER_CS = 0x482a,
        GUEST_SYSENTER_ESP = 0x6824,
        GUEST_SYSENTER_EIP = 0x6826,
    }
    Segments always {
        GUEST_ES = 0x0800,
        GUEST_CS = 0x0802,
        GUEST_SS = 0x0804,
        GUEST_DS = 0x0806,
        GUEST_FS = 0x0808,
        GUEST_GS = 0x080a,
        GUEST_LDTR = 0x080c,
        GUEST_TR = 0x080e,
        GUEST_ES_LIMIT = 0x4800,
        GUEST_CS_LIMIT = 0x4802,
        GUEST_SS_LIMIT = 0x4804,
        GUEST_DS_LIMIT = 0x4806,
        GUEST_FS_LIMIT = 0x4808,
        GUEST_GS_LIMIT = 0x480a,
        GUEST_LDTR_LIMIT = 0x480c,
        GUEST_TR_LIMIT = 0x480e,
        GUEST_ES_RIGHTS = 0x4814,
        GUEST_CS_RIGHTS = 0x4816,
        GUEST_SS_RIGHTS = 0x4818,
        GUEST_DS_RIGHTS = 0x481a,
        GUEST_FS_RIGHTS = 0x481c,
        GUEST_GS_RIGHTS = 0x481e,
        GUEST_LDTR_RIGHTS = 0x4820,
        GUEST_TR_RIGHTS = 0x4822,
        GUEST_ES_BASE = 0x6806,
        GUEST_CS_BASE = 0x6808,
        GUEST_SS_BASE = 0x680a,
        GUEST_DS_BASE = 0x680c,
        GUEST_FS_BASE = 0x680e,
        GUEST_GS_BASE = 0x6810,
        GUEST_LDTR_BASE = 0x6812,
        GUEST_TR_BASE = 0x6814,
    }
    Tables always {
        GUEST_GDTR_LIMIT = 0x4810,
        GUEST_IDTR_LIMIT = 0x4812,
        GUEST_GDTR_BASE = 0x6816,
        GUEST_IDTR_BASE = 0x6818,
    }
    Pointers always {
        GUEST_RSP = 0x681c,
        GUEST_RIP = 0x681e,
    }
    Flags always { GUEST_RFLAGS = 0x6820 }
    Activity always {
        GUEST_INTERRUPTIBILITY = 0x4824,
        GUEST_ACTIVITY = 0x4826,
        GUEST_PENDING_DEBUG = 0x6822,
    }
    Link always { VMCS_LINK = 0x2800 }
    Pdptes (Secondary, secondary::EPT) {
        GUEST_PDPTE0 = 0x280a,
        GUEST_PDPTE1 = 0x280c,
        GUEST_PDPTE2 = 0x280e,
        GUEST_PDPTE3 = 0x2810,
    }
    Unchecked always { GUEST_SMBASE = 0x4828 }
    Unchecked (Pin, pin::PREEMPTION_TIMER) { PREEMPTION_TIMER = 0x482e }
    Unchecked (Secondary, secondary::INTERRUPT_DELIVERY) { GUEST_INTERRUPT_STATUS = 0x0810 }
    Unchecked (Secondary, secondary::PAGE_MODIFICATION_LOG) { PAGE_MODIFICATION_LOG_INDEX = 0x0812 }
    Information always {
        INSTRUCTION_ERROR = 0x4400,
        EXIT_REASON = 0x4402,
        EXIT_INTERRUPTION = 0x4404,
        EXIT_INTERRUPTION_CODE = 0x4406,
        VECTORING = 0x4408,
        VECTORING_CODE = 0x440a,
        EXIT_LENGTH = 0x440c,
        EXIT_INSTRUCTION = 0x440e,
        EXIT_QUALIFICATION = 0x6400,
        IO_RCX = 0x6402,
        IO_RSI = 0x6404,
        IO_RDI = 0x6406,
        IO_RIP = 0x6408,
        GUEST_LINEAR = 0x640a,
    }
    Information (Secondary, secondary::EPT) { GUEST_PHYSICAL = 0x2400 }
}

/// The number of fields.
pub const COUNT: usize = FIELDS.len();

/// Indices of fields are below this.
const INDICES: usize = 64;
const NO_SLOT: u8 = u8::MAX;

/// The slot of each field, by its width, type and index.
static SLOTS: [u8; 16 * INDICES] = slots();

const fn slots() -> [u8; 16 * INDICES] {
    assert!(COUNT < NO_SLOT as usize);
    let mut slots = [NO_SLOT; 16 * INDICES];
    let mut slot = 0;
    while slot < COUNT {
        let at = position(FIELDS[slot].field);
        assert!(FIELDS[slot].field.index() < INDICES as u32 && slots[at] == NO_SLOT, "a field is listed twice");
        slots[at] = slot as u8;
        slot += 1;
    }
    slots
}

const fn position(field: Field) -> usize {
    (field.width() as usize * 4 + field.kind() as usize) * INDICES + field.index() as usize % INDICES
}

impl Field {
    /// Returns the index of the field in [`FIELDS`]; `None` for an encoding without a field.
    #[inline(always)]
    pub fn slot(self) -> Option<usize> {
        let slot = SLOTS[position(self)] as usize;
        // The table's rows have no reserved bits and small indices: an equal position can still be another encoding's.
        (slot < COUNT && FIELDS[slot].field.0 == self.0).then_some(slot)
    }
}

/// The slot of a field, as a constant.
///
/// # Panics
/// There is no such field.
pub const fn slot_of(field: Field) -> usize {
    let mut slot = 0;
    while FIELDS[slot].field.0 != field.0 {
        slot += 1;
    }
    slot
}

/// The fields of one type.
pub fn of_kind(kind: Kind) -> impl Iterator<Item = &'static Row> {
    FIELDS.iter().filter(move |row| row.field.kind() == kind)
}
