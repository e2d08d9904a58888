//! Rules of a VM entry (Intel SDM volume 3, "Checks on VMX Controls and Host-State Area", "Checks on the Guest State
//! Area"): for each a VMCS that enters, except for one change.

use pc::console::println;

use crate::field::{self, entry, exit, pin, primary, secondary};
use crate::test::is_guest;
use crate::vmcs::{Done, VIRTUAL_NMIS, code, enable, enable_ept, fresh, get, may, misc, page, poke, run, set};

/// The expected result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// The entry succeeds.
    Enters,
    /// VMfailValid.
    Fails(u64),
    /// Invalid guest state, with this qualification.
    Exits(u64),
    /// The processor lacks what the row needs.
    Absent,
}

use Expected::{Absent, Enters, Exits, Fails};

/// A row: its name, preparation that keeps the VMCS valid, and the invalid change.
type Row = (&'static str, Expected, fn() -> bool, fn());

pub const CONTROLS: Expected = Fails(7);
pub const HOST: Expected = Fails(8);
pub const GUEST: Expected = Exits(0);

fn nothing() -> bool {
    true
}

fn nothing_more() {}

fn toggle(field: u64, bits: u64) {
    set(field, get(field) ^ bits);
}

fn wide() -> u64 {
    1 << (core::arch::x86_64::__cpuid_count(0x8000_0008, 0).eax & 0xff)
}

fn with_primary(bits: u32) -> bool {
    enable(field::PRIMARY_CONTROLS, bits)
}

fn with_secondary(bits: u32) -> bool {
    enable(field::SECONDARY_CONTROLS, bits)
}

fn io_bitmaps() -> bool {
    set(field::IO_BITMAP_A, page(3));
    set(field::IO_BITMAP_B, page(4));
    with_primary(primary::IO_BITMAPS)
}

fn msr_bitmap() -> bool {
    set(field::MSR_BITMAP, page(3));
    with_primary(primary::MSR_BITMAPS)
}

fn virtual_apic() -> bool {
    set(field::VIRTUAL_APIC, page(12));
    poke(12, 0x80 / 8, 0x50);
    with_primary(primary::TPR_SHADOW)
}

fn apic_accesses() -> bool {
    set(field::APIC_ACCESS, page(13));
    with_secondary(secondary::APIC_ACCESSES)
}

fn x2apic() -> bool {
    virtual_apic() && with_secondary(secondary::X2APIC_MODE)
}

fn delivery() -> bool {
    virtual_apic() && enable(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS) && with_secondary(secondary::INTERRUPT_DELIVERY)
}

fn posted() -> bool {
    set(field::POSTED_INTERRUPTS, page(13));
    set(field::POSTED_INTERRUPT_VECTOR, 0xf2);
    delivery() && enable(field::EXIT_CONTROLS, exit::ACKNOWLEDGE_INTERRUPT) && enable(field::PIN_CONTROLS, pin::POSTED_INTERRUPTS)
}

fn unrestricted() -> bool {
    enable_ept() && with_secondary(secondary::UNRESTRICTED_GUEST)
}

/// 32-bit code with paging and physical-address extension. It does not run: tables for it are missing.
fn protected() -> bool {
    set(field::ENTRY_CONTROLS, get(field::ENTRY_CONTROLS) & !u64::from(entry::IA32E_GUEST));
    set(field::GUEST_EFER, 0);
    set(field::GUEST_CS_RIGHTS, 0xc09b);
    set(field::GUEST_CR0, get(field::GUEST_CR0));
    enable_ept()
}

fn virtual_8086() -> bool {
    let can = protected();
    set(field::GUEST_RFLAGS, 0x2_0002);
    for number in 0..6 {
        set(field::GUEST_ES + 2 * number, 0x1234);
        set(0x6806 + 2 * number, 0x1_2340);
        set(field::GUEST_ES_LIMIT + 2 * number, 0xffff);
        set(field::GUEST_ES_RIGHTS + 2 * number, 0xf3);
    }
    can
}

fn local_table() -> bool {
    set(field::GUEST_LDTR, 0x50);
    set(field::GUEST_LDTR_RIGHTS, 0x82);
    true
}

fn event() -> bool {
    set(field::GUEST_RFLAGS, 0x202);
    set(field::ENTRY_INTERRUPTION, 0x8000_0030);
    true
}

fn virtual_nmis() -> bool {
    enable(field::PIN_CONTROLS, VIRTUAL_NMIS)
}

fn loads_efer() -> bool {
    may(field::ENTRY_CONTROLS, entry::LOAD_EFER)
}

fn loads_pat() -> bool {
    may(field::ENTRY_CONTROLS, entry::LOAD_PAT)
}

fn loads_debug() -> bool {
    enable(field::ENTRY_CONTROLS, entry::LOAD_DEBUG)
}

fn host_efer() -> bool {
    may(field::EXIT_CONTROLS, exit::LOAD_EFER)
}

fn host_pat() -> bool {
    may(field::EXIT_CONTROLS, exit::LOAD_PAT)
}

/// Whether rules that Bochs 3.0 does not check are tested: a hypervisor checks them.
fn is_checked() -> bool {
    is_guest()
}

/// As in privilege level 3.
fn ring_3() -> bool {
    for number in 0..6 {
        toggle(field::GUEST_ES + 2 * number, 3);
        toggle(field::GUEST_ES_RIGHTS + 2 * number, 0x60);
    }
    true
}

const ROWS: &[Row] = &[
    ("pin-based controls", CONTROLS, nothing, || toggle(field::PIN_CONTROLS, 1 << 1)),
    ("pin-based controls, reserved", CONTROLS, nothing, || toggle(field::PIN_CONTROLS, 1 << 31)),
    ("primary controls", CONTROLS, nothing, || toggle(field::PRIMARY_CONTROLS, 1 << 1)),
    ("secondary controls, reserved", CONTROLS, || with_primary(primary::SECONDARY), || set(field::SECONDARY_CONTROLS, 1 << 31)),
    (
        "secondary controls, not activated",
        Enters,
        || may(field::PRIMARY_CONTROLS, primary::SECONDARY),
        || {
            set(field::SECONDARY_CONTROLS, u64::MAX);
            set(field::PRIMARY_CONTROLS, get(field::PRIMARY_CONTROLS) & !u64::from(primary::SECONDARY));
        },
    ),
    ("CR3 targets", CONTROLS, nothing, || set(field::CR3_TARGETS, (misc() >> 16 & 0x1ff) + 1)),
    ("I/O bitmap A, aligned", CONTROLS, io_bitmaps, || set(field::IO_BITMAP_A, page(3) + 0x800)),
    ("I/O bitmap B, aligned", CONTROLS, io_bitmaps, || set(field::IO_BITMAP_B, page(3) + 1)),
    ("I/O bitmap A, width", CONTROLS, io_bitmaps, || set(field::IO_BITMAP_A, wide())),
    ("I/O bitmaps, not used", Enters, nothing, || set(field::IO_BITMAP_A, u64::MAX)),
    ("MSR bitmap, aligned", CONTROLS, msr_bitmap, || set(field::MSR_BITMAP, page(3) + 8)),
    ("MSR bitmap, width", CONTROLS, msr_bitmap, || set(field::MSR_BITMAP, wide())),
    ("virtual-APIC page, aligned", CONTROLS, virtual_apic, || set(field::VIRTUAL_APIC, page(12) + 0x80)),
    ("virtual-APIC page, width", CONTROLS, virtual_apic, || set(field::VIRTUAL_APIC, wide())),
    ("virtual-APIC page, not used", Enters, nothing, || set(field::VIRTUAL_APIC, u64::MAX)),
    ("TPR threshold, reserved bits", CONTROLS, virtual_apic, || set(field::TPR_THRESHOLD, 0x10)),
    ("TPR threshold, equal to the virtual TPR", Enters, virtual_apic, || set(field::TPR_THRESHOLD, 5)),
    ("TPR threshold, above the virtual TPR", CONTROLS, virtual_apic, || set(field::TPR_THRESHOLD, 6)),
    ("TPR threshold, not used", Enters, nothing, || set(field::TPR_THRESHOLD, 0x1f)),
    ("TPR threshold with APIC accesses", Enters, || virtual_apic() && apic_accesses(), || set(field::TPR_THRESHOLD, 6)),
    ("APIC-access page, aligned", CONTROLS, apic_accesses, || set(field::APIC_ACCESS, page(13) + 8)),
    ("APIC-access page, width", CONTROLS, apic_accesses, || set(field::APIC_ACCESS, wide())),
    ("x2APIC mode without TPR shadow", CONTROLS, x2apic, || toggle(field::PRIMARY_CONTROLS, primary::TPR_SHADOW.into())),
    ("x2APIC mode and APIC accesses", CONTROLS, || x2apic() && apic_accesses(), nothing_more),
    (
        "APIC registers without TPR shadow",
        CONTROLS,
        || virtual_apic() && with_secondary(secondary::APIC_REGISTERS),
        || toggle(field::PRIMARY_CONTROLS, primary::TPR_SHADOW.into()),
    ),
    ("interrupt delivery without TPR shadow", CONTROLS, delivery, || toggle(field::PRIMARY_CONTROLS, primary::TPR_SHADOW.into())),
    ("interrupt delivery without exits by interrupts", CONTROLS, delivery, || toggle(field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPTS.into())),
    ("TPR threshold with interrupt delivery", Enters, delivery, || set(field::TPR_THRESHOLD, 0x1f)),
    ("posted interrupts without interrupt delivery", CONTROLS, posted, || {
        toggle(field::SECONDARY_CONTROLS, secondary::INTERRUPT_DELIVERY.into());
    }),
    ("posted interrupts without acknowledgement", CONTROLS, posted, || toggle(field::EXIT_CONTROLS, exit::ACKNOWLEDGE_INTERRUPT.into())),
    ("posted interrupts, notification vector", CONTROLS, posted, || set(field::POSTED_INTERRUPT_VECTOR, 0x100)),
    ("posted interrupts, descriptor, aligned", CONTROLS, posted, || set(field::POSTED_INTERRUPTS, page(13) + 0x20)),
    ("posted interrupts, descriptor, width", CONTROLS, posted, || set(field::POSTED_INTERRUPTS, wide())),
    ("posted interrupts", Enters, posted, nothing_more),
    (
        "posted interrupts, descriptor at the end of a page",
        Enters,
        || is_checked() && posted(),
        || set(field::POSTED_INTERRUPTS, page(13) + 0xfc0),
    ),
    ("virtual NMIs without NMI exiting", CONTROLS, virtual_nmis, || toggle(field::PIN_CONTROLS, pin::NMIS.into())),
    ("NMI window without virtual NMIs", CONTROLS, nothing, || toggle(field::PRIMARY_CONTROLS, primary::NMI_WINDOW.into())),
    (
        "VPID 0",
        CONTROLS,
        || {
            set(field::VPID, 1);
            with_secondary(secondary::VPID)
        },
        || set(field::VPID, 0),
    ),
    ("EPT pointer, memory type", CONTROLS, enable_ept, || toggle(field::EPT_POINTER, 1)),
    ("EPT pointer, length of walks", CONTROLS, enable_ept, || toggle(field::EPT_POINTER, 1 << 3)),
    ("EPT pointer, reserved bits", CONTROLS, enable_ept, || toggle(field::EPT_POINTER, 1 << 11)),
    ("EPT pointer, width", CONTROLS, enable_ept, || toggle(field::EPT_POINTER, wide())),
    ("unrestricted guest without EPT", CONTROLS, unrestricted, || toggle(field::SECONDARY_CONTROLS, secondary::EPT.into())),
    ("VM-exit controls", CONTROLS, nothing, || toggle(field::EXIT_CONTROLS, 1)),
    ("VM-exit controls, reserved", CONTROLS, nothing, || toggle(field::EXIT_CONTROLS, 1 << 27)),
    (
        "saving a preemption timer that is not active",
        CONTROLS,
        || may(field::EXIT_CONTROLS, exit::SAVE_PREEMPTION_TIMER),
        || toggle(field::EXIT_CONTROLS, exit::SAVE_PREEMPTION_TIMER.into()),
    ),
    ("MSR-store area, aligned", CONTROLS, nothing, || {
        set(field::EXIT_MSR_STORES, 1);
        set(field::EXIT_MSR_STORE_AREA, 8);
    }),
    ("MSR-store area, empty", Enters, nothing, || set(field::EXIT_MSR_STORE_AREA, 8)),
    ("MSR-load area of exits, width", CONTROLS, nothing, || {
        set(field::EXIT_MSR_LOADS, 2);
        set(field::EXIT_MSR_LOAD_AREA, wide() - 16);
    }),
    ("VM-entry controls", CONTROLS, nothing, || toggle(field::ENTRY_CONTROLS, 1)),
    (
        "VM-entry controls, to SMM",
        CONTROLS,
        || !may(field::ENTRY_CONTROLS, entry::TO_SMM),
        || toggle(field::ENTRY_CONTROLS, entry::TO_SMM.into()),
    ),
    ("MSR-load area of entries, aligned", CONTROLS, nothing, || {
        set(field::ENTRY_MSR_LOADS, 1);
        set(field::ENTRY_MSR_LOAD_AREA, 4);
    }),
    ("event, reserved type", CONTROLS, nothing, || set(field::ENTRY_INTERRUPTION, 0x8000_0120)),
    ("event, not valid", Enters, nothing, || set(field::ENTRY_INTERRUPTION, 0x0000_0120)),
    ("event, vector of an NMI", CONTROLS, nothing, || set(field::ENTRY_INTERRUPTION, 0x8000_0203)),
    ("event, vector of an exception", CONTROLS, nothing, || set(field::ENTRY_INTERRUPTION, 0x8000_0320)),
    ("event, vector of a trap", CONTROLS, nothing, || set(field::ENTRY_INTERRUPTION, 0x8000_0701)),
    ("event, missing error code", CONTROLS, || !has_any_code(), || set(field::ENTRY_INTERRUPTION, 0x8000_030d)),
    ("event, error code of an interrupt", CONTROLS, event, || set(field::ENTRY_INTERRUPTION, 0x8000_0830)),
    ("event, superfluous error code", CONTROLS, || !has_any_code(), || set(field::ENTRY_INTERRUPTION, 0x8000_0b06)),
    ("event, reserved bits", CONTROLS, nothing, || set(field::ENTRY_INTERRUPTION, 0x8000_1306)),
    ("event, long error code", CONTROLS, nothing, || {
        set(field::ENTRY_INTERRUPTION, 0x8000_0b0d);
        set(field::ENTRY_ERROR_CODE, 0x1_0000);
    }),
    ("event, instruction length", CONTROLS, nothing, || {
        set(field::ENTRY_INTERRUPTION, 0x8000_0480);
        set(field::ENTRY_LENGTH, 16);
    }),
    ("host CR0", HOST, nothing, || toggle(field::HOST_CR0, 1 << 31)),
    ("host CR4", HOST, nothing, || toggle(field::HOST_CR4, 1 << 13)),
    ("host CR4, reserved", HOST, nothing, || toggle(field::HOST_CR4, 1 << 31)),
    ("host CR3", HOST, nothing, || set(field::HOST_CR3, 1 << 63)),
    ("host IA32_SYSENTER_EIP", HOST, nothing, || set(field::HOST_SYSENTER_EIP, 1 << 47)),
    ("host IA32_PAT", HOST, host_pat, || set(field::HOST_PAT, 2)),
    ("host IA32_EFER, reserved", HOST, host_efer, || toggle(field::HOST_EFER, 1 << 1)),
    ("host IA32_EFER, LME", HOST, host_efer, || toggle(field::HOST_EFER, 1 << 8)),
    ("host IA32_EFER, LMA", HOST, host_efer, || toggle(field::HOST_EFER, 1 << 10)),
    ("host selector, TI", HOST, nothing, || set(field::HOST_GS, 4)),
    ("host selector, RPL", HOST, nothing, || set(field::HOST_ES, 0x13)),
    ("host CS 0", HOST, nothing, || set(field::HOST_CS, 0)),
    ("host TR 0", HOST, nothing, || set(field::HOST_TR, 0)),
    ("host SS 0", Enters, nothing, || set(field::HOST_SS, 0)),
    ("host IDTR's base", HOST, nothing, || set(field::HOST_IDTR_BASE, 1 << 63)),
    (
        "host address-space size",
        HOST,
        || {
            if host_efer() {
                set(field::HOST_EFER, 0);
                set(field::EXIT_CONTROLS, get(field::EXIT_CONTROLS) & !u64::from(exit::LOAD_EFER));
            }
            true
        },
        || toggle(field::EXIT_CONTROLS, exit::HOST_64.into()),
    ),
    ("host CR4.PAE", HOST, nothing, || toggle(field::HOST_CR4, 1 << 5)),
    ("host RIP", HOST, nothing, || set(field::HOST_RIP, 1 << 47)),
    ("guest CR0, NE", GUEST, nothing, || toggle(field::GUEST_CR0, 1 << 5)),
    ("guest CR0, reserved", GUEST, nothing, || toggle(field::GUEST_CR0, 1 << 32)),
    ("guest CR0, PE", GUEST, nothing, || toggle(field::GUEST_CR0, 1)),
    ("guest CR0, CD and NW", Enters, nothing, || toggle(field::GUEST_CR0, 1 << 29)),
    ("guest CR4, VMXE", GUEST, nothing, || toggle(field::GUEST_CR4, 1 << 13)),
    ("guest CR4, reserved", GUEST, nothing, || toggle(field::GUEST_CR4, 1 << 31)),
    ("guest IA32_DEBUGCTL", GUEST, || is_checked() && loads_debug(), || set(field::GUEST_DEBUGCTL, 1 << 4)),
    ("guest CR4.PAE in IA-32e mode", GUEST, nothing, || toggle(field::GUEST_CR4, 1 << 5)),
    ("guest CR4.PCIDE outside IA-32e mode", GUEST, protected, || toggle(field::GUEST_CR4, 1 << 17)),
    ("guest CR3", GUEST, nothing, || set(field::GUEST_CR3, 1 << 62)),
    ("guest DR7", GUEST, loads_debug, || set(field::GUEST_DR7, 1 << 32)),
    ("guest IA32_SYSENTER_ESP", GUEST, nothing, || set(field::GUEST_SYSENTER_ESP, 1 << 62)),
    ("guest IA32_PAT", GUEST, loads_pat, || set(field::GUEST_PAT, 3 << 56)),
    ("guest IA32_EFER, reserved", GUEST, loads_efer, || toggle(field::GUEST_EFER, 1 << 12)),
    ("guest IA32_EFER, LMA", GUEST, loads_efer, || toggle(field::GUEST_EFER, 1 << 10)),
    ("guest IA32_EFER, LME", GUEST, loads_efer, || toggle(field::GUEST_EFER, 1 << 8)),
    ("TR, TI", GUEST, nothing, || set(field::GUEST_TR, 0x1c)),
    ("LDTR, TI", GUEST, local_table, || set(field::GUEST_LDTR, 0x54)),
    ("SS.RPL", GUEST, nothing, || set(field::GUEST_SS, 0x13)),
    ("SS.RPL of an unrestricted guest", Enters, unrestricted, || set(field::GUEST_SS, 0x13)),
    ("base in virtual-8086 mode", GUEST, virtual_8086, || set(field::GUEST_ES, 0x1235)),
    ("limit in virtual-8086 mode", GUEST, virtual_8086, || set(0x480a, 0xf_ffff)),
    ("rights in virtual-8086 mode", GUEST, virtual_8086, || set(field::GUEST_FS_RIGHTS, 0x93)),
    ("TR's base", GUEST, nothing, || set(field::GUEST_TR_BASE, 1 << 60)),
    ("LDTR's base", GUEST, local_table, || set(field::GUEST_LDTR_BASE, 1 << 60)),
    ("DS's base", GUEST, nothing, || set(field::GUEST_DS_BASE, 1 << 32)),
    ("CS is data", GUEST, nothing, || set(field::GUEST_CS_RIGHTS, 0xa093)),
    ("CS is not accessed", GUEST, nothing, || set(field::GUEST_CS_RIGHTS, 0xa09a)),
    ("SS is read-only", GUEST, nothing, || set(field::GUEST_SS_RIGHTS, 0xc091)),
    ("SS is unusable", Enters, nothing, || set(field::GUEST_SS_RIGHTS, 0x1_0000)),
    ("DS is code that cannot be read", GUEST, nothing, || set(field::GUEST_DS_RIGHTS, 0xc099)),
    ("FS is a system segment", GUEST, nothing, || set(field::GUEST_FS_RIGHTS, 0xc083)),
    ("CS.DPL", GUEST, nothing, || set(field::GUEST_CS_RIGHTS, 0xa0fb)),
    ("SS.DPL", GUEST, nothing, || {
        set(field::GUEST_CS_RIGHTS, 0xa0fb);
        set(field::GUEST_SS_RIGHTS, 0xc0f3);
    }),
    ("ES.DPL", GUEST, nothing, || set(field::GUEST_ES, 0x11)),
    ("GS is not present", GUEST, nothing, || set(field::GUEST_GS_RIGHTS, 0xc013)),
    ("GS, reserved", GUEST, nothing, || set(field::GUEST_GS_RIGHTS, 0xc193)),
    ("CS, L and D", GUEST, nothing, || toggle(field::GUEST_CS_RIGHTS, 1 << 14)),
    ("ES's limit, in pages", GUEST, nothing, || set(field::GUEST_ES_LIMIT, 0xffff_fffe)),
    ("ES's limit, in bytes", GUEST, nothing, || toggle(field::GUEST_ES_RIGHTS, 1 << 15)),
    ("TR is available", GUEST, nothing, || set(field::GUEST_TR_RIGHTS, 0x89)),
    ("TR is a 16-bit TSS", GUEST, nothing, || set(field::GUEST_TR_RIGHTS, 0x83)),
    ("TR is code", GUEST, nothing, || set(field::GUEST_TR_RIGHTS, 0x9b)),
    ("TR is not present", GUEST, nothing, || set(field::GUEST_TR_RIGHTS, 0x0b)),
    ("TR, reserved", GUEST, nothing, || set(field::GUEST_TR_RIGHTS, 0x18b)),
    ("TR's limit", GUEST, nothing, || set(0x480e, 0x10_0000)),
    ("TR is unusable", GUEST, nothing, || set(field::GUEST_TR_RIGHTS, 0x1_008b)),
    ("LDTR is another segment", GUEST, local_table, || set(field::GUEST_LDTR_RIGHTS, 0x81)),
    ("LDTR is data", GUEST, local_table, || set(field::GUEST_LDTR_RIGHTS, 0x92)),
    ("LDTR is not present", GUEST, local_table, || set(field::GUEST_LDTR_RIGHTS, 0x02)),
    ("LDTR, reserved", GUEST, local_table, || set(field::GUEST_LDTR_RIGHTS, 0x2_0082)),
    ("GDTR's base", GUEST, nothing, || set(field::GUEST_GDTR_BASE, 1 << 63)),
    ("IDTR's limit", GUEST, nothing, || set(field::GUEST_IDTR_LIMIT, 0x1_0000)),
    ("RIP of 32-bit code", GUEST, protected, || set(field::GUEST_RIP, 1 << 32)),
    ("RFLAGS, reserved", GUEST, nothing, || set(field::GUEST_RFLAGS, 0xa)),
    ("RFLAGS, bit 1", GUEST, nothing, || set(field::GUEST_RFLAGS, 0)),
    ("RFLAGS.VM in IA-32e mode", GUEST, nothing, || set(field::GUEST_RFLAGS, 0x2_0002)),
    ("RFLAGS.IF for an interrupt", GUEST, event, || set(field::GUEST_RFLAGS, 2)),
    ("activity state", GUEST, nothing, || set(field::GUEST_ACTIVITY, 4)),
    ("HLT in privilege level 3", GUEST, || misc() & 1 << 6 != 0 && ring_3(), || set(field::GUEST_ACTIVITY, 1)),
    (
        "HLT and MOV SS",
        GUEST,
        || misc() & 1 << 6 != 0,
        || {
            set(field::GUEST_INTERRUPTIBILITY, 2);
            set(field::GUEST_ACTIVITY, 1);
        },
    ),
    (
        "HLT and a page fault",
        GUEST,
        || is_checked() && misc() & 1 << 6 != 0,
        || {
            set(field::GUEST_ACTIVITY, 1);
            set(field::ENTRY_INTERRUPTION, 0x8000_0b0e);
        },
    ),
    ("interruptibility, reserved", GUEST, nothing, || set(field::GUEST_INTERRUPTIBILITY, 0x20)),
    ("blocking by STI and MOV SS", GUEST, nothing, || {
        set(field::GUEST_RFLAGS, 0x202);
        set(field::GUEST_INTERRUPTIBILITY, 3);
    }),
    ("blocking by STI without RFLAGS.IF", GUEST, nothing, || set(field::GUEST_INTERRUPTIBILITY, 1)),
    ("blocking by STI, and an interrupt", GUEST, event, || set(field::GUEST_INTERRUPTIBILITY, 1)),
    ("blocking by MOV SS, and an NMI", GUEST, nothing, || {
        set(field::GUEST_INTERRUPTIBILITY, 2);
        set(field::ENTRY_INTERRUPTION, 0x8000_0202);
    }),
    ("blocking by SMI", GUEST, nothing, || set(field::GUEST_INTERRUPTIBILITY, 4)),
    (
        "blocking by NMI, and an NMI",
        GUEST,
        || is_checked() && virtual_nmis(),
        || {
            set(field::GUEST_INTERRUPTIBILITY, 8);
            set(field::ENTRY_INTERRUPTION, 0x8000_0202);
        },
    ),
    ("pending debug exceptions, reserved", GUEST, nothing, || set(field::GUEST_PENDING_DEBUG, 1 << 13)),
    ("pending debug exceptions, BS without TF", GUEST, is_checked, || {
        set(field::GUEST_INTERRUPTIBILITY, 2);
        set(field::GUEST_PENDING_DEBUG, 1 << 14);
    }),
    ("pending debug exceptions, TF without BS", GUEST, is_checked, || {
        set(field::GUEST_INTERRUPTIBILITY, 2);
        set(field::GUEST_RFLAGS, 0x102);
    }),
    ("VMCS link pointer, aligned", Exits(4), nothing, || set(field::VMCS_LINK, page(2) + 1)),
    ("VMCS link pointer, width", Exits(4), nothing, || set(field::VMCS_LINK, wide())),
    ("VMCS link pointer, current VMCS", Exits(4), nothing, || set(field::VMCS_LINK, page(crate::vmcs::FIRST))),
    ("VMCS link pointer, revision", Exits(4), nothing, || set(field::VMCS_LINK, page(3))),
    ("PDPTEs", Exits(2), protected, || set(0x2810, 0x1003)),
    ("PDPTEs, not present", Enters, protected, || set(0x2810, 0x1002)),
    // Errors of controls precede those of guest state, and so do errors of the host state.
    ("controls before guest state", CONTROLS, nothing, || {
        set(field::GUEST_RFLAGS, 0);
        toggle(field::PIN_CONTROLS, 1 << 1);
    }),
    ("host state before guest state", HOST, nothing, || {
        set(field::GUEST_RFLAGS, 0);
        set(field::HOST_CS, 0);
    }),
];

/// IA32_VMX_BASIC bit 56: exceptions may have an error code, or not, whatever their vector.
fn has_any_code() -> bool {
    crate::vmcs::capability(0x480) & 1 << 56 != 0
}

/// Enters the current VMCS, which is clear.
pub fn outcome() -> Expected {
    match run(&mut [0; 8], false) {
        Err(Done::Fail(error)) => Fails(error),
        Ok(0x8000_0021) => Exits(get(field::EXIT_QUALIFICATION)),
        Ok(reason) if reason >> 31 == 0 => Enters,
        _ => Absent,
    }
}

/// Runs all rows. Returns how many failed.
pub fn run_all() -> u32 {
    let mut failed = 0;
    for (name, expected, prepare, change) in ROWS {
        let code = code!("nop");
        fresh(code);
        // An event that should not be injected ends here, too.
        crate::events::resume_at(code);
        if !prepare() {
            println!("SKIP checks {name}: nothing here checks it");
            continue;
        }
        change();
        let found = outcome();
        if found == *expected {
            println!("PASS checks {name}");
        } else {
            failed += 1;
            println!("FAIL checks {name}: {found:?}, not {expected:?}");
        }
    }
    failed
}
