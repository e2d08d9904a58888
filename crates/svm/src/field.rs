//! Fields of a VMCB: place, form, clean bit (the manual, "VMCB Layout, Control Area" and "VMCB Layout, State Save
//! Area").

use crate::clean;

/// Size of a VMCB in bytes.
pub const VMCB_SIZE: usize = 4096;
/// Offset of the state-save area.
pub const SAVE_AREA: u16 = 0x400;
/// Offset of the area that the processor leaves to software ("Reserved for Host usage").
const HOST_AREA: u16 = 0x3e0;

/// Representation of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Word,
    /// 32 bits.
    Dword,
    /// 64 bits.
    Qword,
    /// Attributes of a segment, read and written as access rights: see [`crate::unpack`].
    Rights,
    /// As [`Form::Rights`], of SS. The privilege level is that of the field CPL.
    StackRights,
    /// EFER, whose bit SVME is always set, and hidden from readers.
    Efer,
    /// Blocking of interrupts: bit 0 by STI or MOV SS, bit 3 by an NMI, which software keeps.
    Interruptibility,
    /// Length of the intercepted instruction: the next RIP less RIP. Read-only.
    Length,
    /// No field of a VMCB: reads as zero, ignores writes.
    Absent,
}

/// A field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Offset in bytes.
    pub offset: u16,
    /// Representation.
    pub form: Form,
    /// Clean bit.
    pub clean: u32,
}

const fn field(offset: u16, form: Form, clean: u32) -> Field {
    assert!(offset as usize + 8 <= VMCB_SIZE);
    Field { offset, form, clean }
}

const fn control(offset: u16, form: Form, clean: u32) -> Field {
    assert!(offset < SAVE_AREA);
    field(offset, form, clean)
}

const fn saved(offset: u16, form: Form, clean: u32) -> Field {
    field(SAVE_AREA + offset, form, clean)
}

/// Distance of the segments, which are in the order of the registers' encoding.
const SEGMENT: u16 = 0x10;

/// Part of a segment: its selector, rights, limit or base.
const fn segment(number: u16, part: u16, form: Form) -> Field {
    // FS, GS, LDTR and TR move by VMLOAD.
    let clean = if number < 4 { clean::SEGMENTS } else { clean::NONE };
    saved(number * SEGMENT + part, form, clean)
}

const SELECTOR: u16 = 0;
const RIGHTS: u16 = 2;
const LIMIT: u16 = 4;
const BASE: u16 = 8;
const ES: u16 = 0;
const CS: u16 = 1;
const SS: u16 = 2;
const DS: u16 = 3;
const FS: u16 = 4;
const GS: u16 = 5;
const GDTR: u16 = 6;
const LDTR: u16 = 7;
const IDTR: u16 = 8;
const TR: u16 = 9;

#[allow(missing_docs, reason = "the manual's names; guest state has the names of VMX's fields with the same content")]
impl Field {
    // Control area: words of intercepts ("crate::intercept"), by number.
    pub const INTERCEPTS_CR: Field = control(0x00, Form::Dword, clean::INTERCEPTS);
    pub const INTERCEPTS_DR: Field = control(0x04, Form::Dword, clean::INTERCEPTS);
    pub const INTERCEPTS_EXCEPTION: Field = control(0x08, Form::Dword, clean::INTERCEPTS);
    pub const INTERCEPTS_3: Field = control(0x0c, Form::Dword, clean::INTERCEPTS);
    pub const INTERCEPTS_4: Field = control(0x10, Form::Dword, clean::INTERCEPTS);
    pub const INTERCEPTS_5: Field = control(0x14, Form::Dword, clean::INTERCEPTS);
    pub const PAUSE_GAP: Field = control(0x3c, Form::Word, clean::INTERCEPTS);
    pub const PAUSE_COUNT: Field = control(0x3e, Form::Word, clean::INTERCEPTS);
    pub const IO_MAP: Field = control(0x40, Form::Qword, clean::PERMISSION_MAPS);
    pub const MSR_MAP: Field = control(0x48, Form::Qword, clean::PERMISSION_MAPS);
    pub const TSC_OFFSET: Field = control(0x50, Form::Qword, clean::INTERCEPTS);
    pub const ASID: Field = control(0x58, Form::Dword, clean::ASID);
    pub const TLB_CONTROL: Field = control(0x5c, Form::Byte, clean::NONE);
    pub const INTERRUPT_CONTROL: Field = control(0x60, Form::Qword, clean::INTERRUPT);
    /// V_TPR: what reads of CR8 return.
    pub const GUEST_TPR: Field = control(0x60, Form::Byte, clean::INTERRUPT);
    pub const GUEST_INTERRUPTIBILITY: Field = control(0x68, Form::Interruptibility, clean::NONE);
    pub const EXIT_REASON: Field = control(0x70, Form::Qword, clean::NONE);
    pub const EXIT_INFO_1: Field = control(0x78, Form::Qword, clean::NONE);
    pub const EXIT_INFO_2: Field = control(0x80, Form::Qword, clean::NONE);
    pub const GUEST_PHYSICAL: Field = Self::EXIT_INFO_2;
    pub const VECTORING: Field = control(0x88, Form::Dword, clean::NONE);
    pub const VECTORING_CODE: Field = control(0x8c, Form::Dword, clean::NONE);
    pub const NESTED_PAGING: Field = control(0x90, Form::Qword, clean::NESTED_PAGING);
    pub const ENTRY_INTERRUPTION: Field = control(0xa8, Form::Dword, clean::NONE);
    pub const ENTRY_ERROR_CODE: Field = control(0xac, Form::Dword, clean::NONE);
    pub const NESTED_ROOT: Field = control(0xb0, Form::Qword, clean::NESTED_PAGING);
    pub const CLEAN: Field = control(0xc0, Form::Dword, clean::NONE);
    /// Next RIP. Software writes it where the processor does not.
    pub const NEXT_RIP: Field = control(0xc8, Form::Qword, clean::NONE);
    pub const EXIT_LENGTH: Field = control(0xc8, Form::Length, clean::NONE);
    /// Exit qualification in VMX's format, which software writes for handlers that both back ends have.
    pub const EXIT_QUALIFICATION: Field = control(HOST_AREA, Form::Qword, clean::NONE);
    /// Blocking by NMI.
    pub const NMI_BLOCKED: Field = control(HOST_AREA + 8, Form::Byte, clean::NONE);
    /// The guest's IRET from an NMI is being stepped over.
    pub const NMI_STEP: Field = control(HOST_AREA + 9, Form::Byte, clean::NONE);

    // State-save area.
    pub const GUEST_ES: Field = segment(ES, SELECTOR, Form::Word);
    pub const GUEST_ES_RIGHTS: Field = segment(ES, RIGHTS, Form::Rights);
    pub const GUEST_ES_LIMIT: Field = segment(ES, LIMIT, Form::Dword);
    pub const GUEST_ES_BASE: Field = segment(ES, BASE, Form::Qword);
    pub const GUEST_CS: Field = segment(CS, SELECTOR, Form::Word);
    pub const GUEST_CS_RIGHTS: Field = segment(CS, RIGHTS, Form::Rights);
    pub const GUEST_CS_LIMIT: Field = segment(CS, LIMIT, Form::Dword);
    pub const GUEST_CS_BASE: Field = segment(CS, BASE, Form::Qword);
    pub const GUEST_SS: Field = segment(SS, SELECTOR, Form::Word);
    pub const GUEST_SS_RIGHTS: Field = segment(SS, RIGHTS, Form::StackRights);
    pub const GUEST_SS_LIMIT: Field = segment(SS, LIMIT, Form::Dword);
    pub const GUEST_SS_BASE: Field = segment(SS, BASE, Form::Qword);
    pub const GUEST_DS: Field = segment(DS, SELECTOR, Form::Word);
    pub const GUEST_DS_RIGHTS: Field = segment(DS, RIGHTS, Form::Rights);
    pub const GUEST_DS_LIMIT: Field = segment(DS, LIMIT, Form::Dword);
    pub const GUEST_DS_BASE: Field = segment(DS, BASE, Form::Qword);
    pub const GUEST_FS: Field = segment(FS, SELECTOR, Form::Word);
    pub const GUEST_FS_RIGHTS: Field = segment(FS, RIGHTS, Form::Rights);
    pub const GUEST_FS_LIMIT: Field = segment(FS, LIMIT, Form::Dword);
    pub const GUEST_FS_BASE: Field = segment(FS, BASE, Form::Qword);
    pub const GUEST_GS: Field = segment(GS, SELECTOR, Form::Word);
    pub const GUEST_GS_RIGHTS: Field = segment(GS, RIGHTS, Form::Rights);
    pub const GUEST_GS_LIMIT: Field = segment(GS, LIMIT, Form::Dword);
    pub const GUEST_GS_BASE: Field = segment(GS, BASE, Form::Qword);
    pub const GUEST_GDTR_LIMIT: Field = saved(GDTR * SEGMENT + LIMIT, Form::Dword, clean::DESCRIPTOR_TABLES);
    pub const GUEST_GDTR_BASE: Field = saved(GDTR * SEGMENT + BASE, Form::Qword, clean::DESCRIPTOR_TABLES);
    pub const GUEST_LDTR: Field = segment(LDTR, SELECTOR, Form::Word);
    pub const GUEST_LDTR_RIGHTS: Field = segment(LDTR, RIGHTS, Form::Rights);
    pub const GUEST_LDTR_LIMIT: Field = segment(LDTR, LIMIT, Form::Dword);
    pub const GUEST_LDTR_BASE: Field = segment(LDTR, BASE, Form::Qword);
    pub const GUEST_IDTR_LIMIT: Field = saved(IDTR * SEGMENT + LIMIT, Form::Dword, clean::DESCRIPTOR_TABLES);
    pub const GUEST_IDTR_BASE: Field = saved(IDTR * SEGMENT + BASE, Form::Qword, clean::DESCRIPTOR_TABLES);
    pub const GUEST_TR: Field = segment(TR, SELECTOR, Form::Word);
    pub const GUEST_TR_RIGHTS: Field = segment(TR, RIGHTS, Form::Rights);
    pub const GUEST_TR_LIMIT: Field = segment(TR, LIMIT, Form::Dword);
    pub const GUEST_TR_BASE: Field = segment(TR, BASE, Form::Qword);
    pub const CPL: Field = saved(0xcb, Form::Byte, clean::SEGMENTS);
    pub const GUEST_EFER: Field = saved(0xd0, Form::Efer, clean::CONTROL_REGISTERS);
    pub const GUEST_CR4: Field = saved(0x148, Form::Qword, clean::CONTROL_REGISTERS);
    pub const GUEST_CR3: Field = saved(0x150, Form::Qword, clean::CONTROL_REGISTERS);
    pub const GUEST_CR0: Field = saved(0x158, Form::Qword, clean::CONTROL_REGISTERS);
    /// CR0 and CR4 as the guest reads them: the registers themselves.
    pub const CR0_SHADOW: Field = Self::GUEST_CR0;
    pub const CR4_SHADOW: Field = Self::GUEST_CR4;
    pub const GUEST_DR7: Field = saved(0x160, Form::Qword, clean::DEBUG_REGISTERS);
    pub const GUEST_DR6: Field = saved(0x168, Form::Qword, clean::DEBUG_REGISTERS);
    pub const GUEST_RFLAGS: Field = saved(0x170, Form::Qword, clean::NONE);
    pub const GUEST_RIP: Field = saved(0x178, Form::Qword, clean::NONE);
    pub const GUEST_RSP: Field = saved(0x1d8, Form::Qword, clean::NONE);
    pub const GUEST_RAX: Field = saved(0x1f8, Form::Qword, clean::NONE);
    pub const STAR: Field = saved(0x200, Form::Qword, clean::NONE);
    pub const LSTAR: Field = saved(0x208, Form::Qword, clean::NONE);
    pub const CSTAR: Field = saved(0x210, Form::Qword, clean::NONE);
    pub const FMASK: Field = saved(0x218, Form::Qword, clean::NONE);
    pub const KERNEL_GS_BASE: Field = saved(0x220, Form::Qword, clean::NONE);
    pub const GUEST_SYSENTER_CS: Field = saved(0x228, Form::Qword, clean::NONE);
    pub const GUEST_SYSENTER_ESP: Field = saved(0x230, Form::Qword, clean::NONE);
    pub const GUEST_SYSENTER_EIP: Field = saved(0x238, Form::Qword, clean::NONE);
    pub const GUEST_CR2: Field = saved(0x240, Form::Qword, clean::CR2);
    pub const GUEST_PAT: Field = saved(0x268, Form::Qword, clean::NESTED_PAGING);
    pub const GUEST_DEBUGCTL: Field = saved(0x270, Form::Qword, clean::LAST_BRANCHES);

    // Parts of VMX that handlers of both back ends name.
    pub const GUEST_LINEAR: Field = field(0, Form::Absent, clean::NONE);
    pub const GUEST_INTERRUPT_STATUS: Field = field(0, Form::Absent, clean::NONE);
    pub const GUEST_ACTIVITY: Field = field(0, Form::Absent, clean::NONE);
    pub const GUEST_PENDING_DEBUG: Field = field(0, Form::Absent, clean::NONE);
    pub const TPR_THRESHOLD: Field = field(0, Form::Absent, clean::NONE);
    pub const ENTRY_LENGTH: Field = field(0, Form::Absent, clean::NONE);
    pub const ENTRY_CONTROLS: Field = field(0, Form::Absent, clean::NONE);
}

impl Field {
    /// The field at the same place of the segment with a register number, from 0 (ES) to 5 (GS). `self`: ES's.
    #[inline(always)]
    pub const fn of_segment(self, number: u16) -> Field {
        let form = match self.form {
            Form::Rights if number == SS => Form::StackRights,
            form => form,
        };
        Field { offset: self.offset + number * SEGMENT, form, clean: clean::SEGMENTS }
    }
}

// "VMCB Layout": fields next to each other, so that one wrong offset shows.
const _: () = {
    assert!(Field::GUEST_TR_BASE.offset == 0x498 && Field::CPL.offset == 0x4cb && Field::GUEST_EFER.offset == 0x4d0);
    assert!(Field::GUEST_CR4.offset == 0x548 && Field::GUEST_RIP.offset == 0x578 && Field::GUEST_RSP.offset == 0x5d8);
    assert!(Field::GUEST_RAX.offset == 0x5f8 && Field::GUEST_CR2.offset == 0x640 && Field::GUEST_PAT.offset == 0x668);
    assert!(Field::NMI_BLOCKED.offset < SAVE_AREA);
};
