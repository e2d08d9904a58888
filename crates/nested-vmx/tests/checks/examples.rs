//! For each rule, a VMCS that satisfies it and one that violates it.

use stile_nested_vmx::controls::{entry, exit, pin, primary, secondary};
use stile_nested_vmx::{Field, Vmcs12};

pub type Change = fn(&mut Vmcs12);

pub struct Example {
    pub rule: &'static str,
    /// Applied to a valid VMCS, gives another.
    pub valid: Change,
    pub invalid: Change,
}

/// Valid VMCSs to start from.
pub const STARTS: &[Change] = &[none, protected, pae, real, virtual_8086, posted, local_table, ring_3, no_ept, event, host_32];

fn none(_: &mut Vmcs12) {}

fn toggle(vmcs: &mut Vmcs12, field: Field, bits: u32) {
    vmcs.set(field, vmcs.get(field) ^ u64::from(bits));
}

/// 32-bit guest with paging and without physical-address extension.
pub fn protected(vmcs: &mut Vmcs12) {
    toggle(vmcs, Field::ENTRY_CONTROLS, entry::IA32E_GUEST);
    vmcs.set(Field::GUEST_EFER, 0);
    vmcs.set(Field::GUEST_CR4, 0x2000);
    vmcs.set(Field::GUEST_RIP, 0x1000);
    vmcs.set(Field::GUEST_CS_RIGHTS, 0xc09b);
}

/// 32-bit guest with physical-address extension.
pub fn pae(vmcs: &mut Vmcs12) {
    protected(vmcs);
    vmcs.set(Field::GUEST_CR4, 0x2020);
}

/// A guest in real mode.
fn real(vmcs: &mut Vmcs12) {
    protected(vmcs);
    toggle(vmcs, Field::SECONDARY_CONTROLS, secondary::UNRESTRICTED_GUEST);
    vmcs.set(Field::GUEST_CR0, 0x30);
    vmcs.set(Field::GUEST_CS_RIGHTS, 0x93);
    vmcs.set(Field::GUEST_CS_LIMIT, 0xffff);
}

fn virtual_8086(vmcs: &mut Vmcs12) {
    protected(vmcs);
    vmcs.set(Field::GUEST_RFLAGS, 0x2_0002);
    for number in 0..6 {
        vmcs.set(Field(Field::GUEST_ES.0 + 2 * number), 0x1234);
        vmcs.set(Field(Field::GUEST_ES_BASE.0 + 2 * number), 0x1_2340);
        vmcs.set(Field(Field::GUEST_ES_LIMIT.0 + 2 * number), 0xffff);
        vmcs.set(Field(Field::GUEST_ES_RIGHTS.0 + 2 * number), 0xf3);
    }
}

fn posted(vmcs: &mut Vmcs12) {
    toggle(vmcs, Field::PIN_CONTROLS, pin::POSTED_INTERRUPTS);
    toggle(vmcs, Field::SECONDARY_CONTROLS, secondary::INTERRUPT_DELIVERY | secondary::APIC_REGISTERS | secondary::X2APIC_MODE);
    vmcs.set(Field::POSTED_INTERRUPT_VECTOR, 0xf2);
    vmcs.set(Field::POSTED_INTERRUPTS, 0x40);
}

/// With a local descriptor table.
fn local_table(vmcs: &mut Vmcs12) {
    vmcs.set(Field::GUEST_LDTR, 0x50);
    vmcs.set(Field::GUEST_LDTR_RIGHTS, 0x82);
}

fn ring_3(vmcs: &mut Vmcs12) {
    for number in 0..6 {
        let (selector, rights) = (Field(Field::GUEST_ES.0 + 2 * number), Field(Field::GUEST_ES_RIGHTS.0 + 2 * number));
        vmcs.set(selector, vmcs.get(selector) | 3);
        vmcs.set(rights, vmcs.get(rights) | 0x60);
    }
}

fn no_ept(vmcs: &mut Vmcs12) {
    pae(vmcs);
    vmcs.set(Field::SECONDARY_CONTROLS, 0);
}

/// With an interrupt to inject.
fn event(vmcs: &mut Vmcs12) {
    vmcs.set(Field::GUEST_RFLAGS, 0x202);
    vmcs.set(Field::ENTRY_INTERRUPTION, 0x8000_0030);
}

fn shadowing(vmcs: &mut Vmcs12) {
    toggle(vmcs, Field::SECONDARY_CONTROLS, secondary::VMCS_SHADOWING);
}

fn apic_accesses(vmcs: &mut Vmcs12) {
    toggle(vmcs, Field::SECONDARY_CONTROLS, secondary::APIC_ACCESSES);
}

fn unrestricted(vmcs: &mut Vmcs12) {
    toggle(vmcs, Field::SECONDARY_CONTROLS, secondary::UNRESTRICTED_GUEST);
}

/// A 32-bit host, which only L1 outside IA-32e mode can have.
pub fn host_32(vmcs: &mut Vmcs12) {
    protected(vmcs);
    toggle(vmcs, Field::EXIT_CONTROLS, exit::HOST_64);
    vmcs.set(Field::HOST_EFER, 0);
    vmcs.set(Field::HOST_CR4, 0x2000);
    vmcs.set(Field::HOST_SS, 0x10);
    vmcs.set(Field::HOST_RIP, 0x1000);
}

macro_rules! examples {
    ($($rule:literal: $valid:expr => $($field:ident = $value:expr),+;)+) => {
        pub const EXAMPLES: &[Example] = &[
            $(Example { rule: $rule, valid: $valid, invalid: |vmcs| { $(let new = $value; vmcs.set(Field::$field, new(vmcs.get(Field::$field)));)+ } },)+
        ];
    };
}

/// A new value.
const fn to(value: u64) -> impl Fn(u64) -> u64 {
    move |_| value
}

/// The value with these bits toggled.
const fn xor(bits: u32) -> impl Fn(u64) -> u64 {
    move |old| old ^ bits as u64
}

examples! {
    "pin-based controls have allowed settings": none => PIN_CONTROLS = xor(1 << 1);
    "primary controls have allowed settings": none => PRIMARY_CONTROLS = xor(1 << 0);
    "secondary controls have allowed settings": none => SECONDARY_CONTROLS = xor(secondary::ENCLS);
    "I/O bitmap A is a page": none => IO_BITMAP_A = to(0x1800);
    "I/O bitmap B is a page": none => IO_BITMAP_B = to(1 << 40);
    "the MSR bitmap is a page": none => MSR_BITMAP = to(1);
    "the virtual-APIC page is a page": none => VIRTUAL_APIC = to(0x4010);
    "virtual NMIs need NMI exiting": none => PIN_CONTROLS = xor(pin::NMIS);
    "NMI-window exiting needs virtual NMIs": none => PIN_CONTROLS = xor(pin::VIRTUAL_NMIS), PRIMARY_CONTROLS = xor(primary::NMI_WINDOW);
    "the APIC-access page is a page": apic_accesses => APIC_ACCESS = to(0x20);
    "x2APIC mode, APIC registers and interrupt delivery need the TPR shadow": posted => PRIMARY_CONTROLS = xor(primary::TPR_SHADOW);
    "x2APIC mode excludes APIC accesses": posted => SECONDARY_CONTROLS = xor(secondary::APIC_ACCESSES);
    "interrupt delivery needs external-interrupt exiting": posted => PIN_CONTROLS = xor(pin::EXTERNAL_INTERRUPTS);
    "posted interrupts need interrupt delivery": posted => SECONDARY_CONTROLS = xor(secondary::INTERRUPT_DELIVERY);
    "posted interrupts need acknowledgement at VM exits": posted => EXIT_CONTROLS = xor(exit::ACKNOWLEDGE_INTERRUPT);
    "the posted-interrupt notification vector has 8 bits": posted => POSTED_INTERRUPT_VECTOR = to(0x1f2);
    "the posted-interrupt descriptor is aligned to 64 bytes": posted => POSTED_INTERRUPTS = to(0x60);
    "VPID is not 0": none => VPID = to(0);
    "the EPT pointer is valid": none => EPT_POINTER = to(0x6016);
    "an unrestricted guest needs EPT": unrestricted => SECONDARY_CONTROLS = xor(secondary::EPT);
    "the VMREAD bitmap is a page": shadowing => VMREAD_BITMAP = to(1);
    "the VMWRITE bitmap is a page": shadowing => VMWRITE_BITMAP = to(1);
    "there are at most 4 CR3-target values": none => CR3_TARGETS = to(5);
    "the TPR threshold has 4 bits": none => TPR_THRESHOLD = to(0x10);
    "the TPR threshold is at most the virtual TPR": none => TPR_THRESHOLD = to(1);
    "VM-exit controls have allowed settings": none => EXIT_CONTROLS = xor(1 << 0);
    "saving the preemption timer needs the timer": none => EXIT_CONTROLS = xor(exit::SAVE_PREEMPTION_TIMER);
    "the VM-exit MSR-store area is valid": none => EXIT_MSR_STORES = to(1), EXIT_MSR_STORE_AREA = to(8);
    "the VM-exit MSR-load area is valid": none => EXIT_MSR_LOADS = to(2), EXIT_MSR_LOAD_AREA = to((1 << 40) - 16);
    "VM-entry controls have allowed settings": none => ENTRY_CONTROLS = xor(entry::TO_SMM);
    "the VM-entry MSR-load area is valid": none => ENTRY_MSR_LOADS = to(1), ENTRY_MSR_LOAD_AREA = to(u64::MAX - 15);
    "the event's type exists": none => ENTRY_INTERRUPTION = to(0x8000_0120);
    "the event's vector fits its type": none => ENTRY_INTERRUPTION = to(0x8000_0203);
    "the event delivers an error code if its exception has one": none => ENTRY_INTERRUPTION = to(0x8000_030d);
    "the event's reserved bits are 0": none => ENTRY_INTERRUPTION = to(0x8000_1306);
    "the event's error code has 16 bits": none => ENTRY_INTERRUPTION = to(0x8000_0b0d), ENTRY_ERROR_CODE = to(0x1_0000);
    "the event's instruction length is valid": none => ENTRY_INTERRUPTION = to(0x8000_0480), ENTRY_LENGTH = to(16);

    "host CR0 has allowed settings": none => HOST_CR0 = xor(1 << 31);
    "host CR4 has allowed settings": none => HOST_CR4 = xor(1 << 13);
    "host CR3 has no bits beyond the physical-address width": none => HOST_CR3 = to(1 << 40);
    "host IA32_SYSENTER_ESP and _EIP are canonical": none => HOST_SYSENTER_EIP = to(1 << 47);
    "host IA32_PAT has memory types": none => HOST_PAT = to(2);
    "host IA32_EFER has no reserved bits": none => HOST_EFER = xor(1 << 1);
    "host IA32_EFER has LMA and LME as the host address-space size": none => HOST_EFER = xor(1 << 8);
    "host selectors have RPL 0 and TI 0": none => HOST_GS = to(4);
    "host CS is not 0": none => HOST_CS = to(0);
    "host TR is not 0": none => HOST_TR = to(0);
    "host bases are canonical": none => HOST_IDTR_BASE = to(1 << 63);
    "host SS is not 0 outside 64-bit mode": host_32 => HOST_SS = to(0);
    "outside IA-32e mode, the guest and the host are outside it": host_32 => EXIT_CONTROLS = xor(exit::HOST_64), HOST_EFER = to(0xd01);
    "in IA-32e mode, the host is in 64-bit mode": protected => EXIT_CONTROLS = xor(exit::HOST_64), HOST_EFER = to(0), HOST_SS = to(0x10);
    "a 32-bit host has no process-context identifiers": host_32 => HOST_CR4 = xor(1 << 17);
    "a 32-bit host's RIP has 32 bits": host_32 => HOST_RIP = to(1 << 32);
    "a 64-bit host has physical-address extension": none => HOST_CR4 = xor(1 << 5);
    "a 64-bit host's RIP is canonical": none => HOST_RIP = to(0x8000_0000_0000);

    "guest CR0 has allowed settings": none => GUEST_CR0 = xor(1 << 5);
    "guest CR0 has protection if it has paging": real => GUEST_CR0 = xor(1 << 31);
    "guest CR4 has allowed settings": none => GUEST_CR4 = xor(1 << 24);
    "guest IA32_DEBUGCTL has no reserved bits": none => GUEST_DEBUGCTL = to(4);
    "a guest in IA-32e mode has paging and physical-address extension": none => GUEST_CR4 = xor(1 << 5);
    "a guest outside IA-32e mode has no process-context identifiers": protected => GUEST_CR4 = xor(1 << 17);
    "guest CR3 has no bits beyond the physical-address width": none => GUEST_CR3 = to(1 << 63);
    "guest DR7 has 32 bits": none => GUEST_DR7 = to(1 << 32);
    "guest IA32_SYSENTER_ESP and _EIP are canonical": none => GUEST_SYSENTER_ESP = to(1 << 62);
    "guest IA32_PAT has memory types": none => GUEST_PAT = to(3 << 56);
    "guest IA32_EFER has no reserved bits": none => GUEST_EFER = xor(1 << 12);
    "guest IA32_EFER.LMA is the IA-32e mode control": none => GUEST_EFER = xor(1 << 10);
    "guest IA32_EFER.LME is LMA if there is paging": none => GUEST_EFER = xor(1 << 8);

    "TR is in the GDT": none => GUEST_TR = to(0x44);
    "LDTR is in the GDT": local_table => GUEST_LDTR = to(0x44);
    "SS.RPL is CS.RPL": none => GUEST_SS = to(3);
    "bases in virtual-8086 mode are 16 times the selectors": virtual_8086 => GUEST_ES = to(0x1235);
    "bases of TR, FS and GS are canonical": none => GUEST_TR_BASE = to(1 << 60);
    "LDTR's base is canonical": local_table => GUEST_LDTR_BASE = to(1 << 60);
    "bases of CS, SS, DS and ES have 32 bits": none => GUEST_DS_BASE = to(1 << 32);
    "limits in virtual-8086 mode are FFFFH": virtual_8086 => GUEST_GS_LIMIT = to(0xf_ffff);
    "access rights in virtual-8086 mode are F3H": virtual_8086 => GUEST_FS_RIGHTS = to(0x93);
    "CS is accessed code": none => GUEST_CS_RIGHTS = to(0xa093);
    "SS is accessed, writable data": none => GUEST_SS_RIGHTS = to(0xc091);
    "DS, ES, FS and GS are accessed, and readable if code": none => GUEST_DS_RIGHTS = to(0xc099);
    "CS, SS, DS, ES, FS and GS are code or data": none => GUEST_FS_RIGHTS = to(0xc083);
    "CS.DPL fits SS.DPL": none => GUEST_CS_RIGHTS = to(0xa0fb);
    "SS.DPL is SS.RPL": none => GUEST_SS_RIGHTS = to(0xc0f3), GUEST_CS_RIGHTS = to(0xa0fb);
    "SS.DPL is 0 without protection": real => GUEST_SS_RIGHTS = to(0xc0f3);
    "DPL of DS, ES, FS and GS is at least RPL": none => GUEST_ES = to(1);
    "CS, SS, DS, ES, FS and GS are present": none => GUEST_GS_RIGHTS = to(0xc013);
    "CS, SS, DS, ES, FS and GS have no reserved bits": none => GUEST_GS_RIGHTS = to(0xc193);
    "64-bit code has D/B 0": none => GUEST_CS_RIGHTS = xor(1 << 14);
    "limits of CS, SS, DS, ES, FS and GS fit the granularity": none => GUEST_ES_LIMIT = to(0xffff_fffe);
    "TR is a busy TSS": none => GUEST_TR_RIGHTS = to(0x83);
    "TR is a system segment": none => GUEST_TR_RIGHTS = to(0x9b);
    "TR is present": none => GUEST_TR_RIGHTS = to(0x0b);
    "TR has no reserved bits": none => GUEST_TR_RIGHTS = to(0x18b);
    "TR's limit fits the granularity": none => GUEST_TR_LIMIT = to(0x10_0000);
    "TR is usable": none => GUEST_TR_RIGHTS = to(0x1_008b);
    "LDTR is an LDT": local_table => GUEST_LDTR_RIGHTS = to(0x81);
    "LDTR is a system segment": local_table => GUEST_LDTR_RIGHTS = to(0x92);
    "LDTR is present": local_table => GUEST_LDTR_RIGHTS = to(0x02);
    "LDTR has no reserved bits": local_table => GUEST_LDTR_RIGHTS = to(0x2_0082);
    "LDTR's limit fits the granularity": local_table => GUEST_LDTR_RIGHTS = to(0x8082);

    "guest GDTR and IDTR bases are canonical": none => GUEST_IDTR_BASE = to(1 << 63);
    "guest GDTR and IDTR limits have 16 bits": none => GUEST_GDTR_LIMIT = to(0x1_0000);
    "guest RIP fits the mode": protected => GUEST_RIP = to(1 << 32);
    "guest RFLAGS has no reserved bits": none => GUEST_RFLAGS = to(0xa);
    "guest RFLAGS.VM is 0 in IA-32e mode and without protection": virtual_8086 => ENTRY_CONTROLS = xor(entry::IA32E_GUEST), GUEST_EFER = to(0xd01), GUEST_CR4 = to(0x2020), GUEST_TR_RIGHTS = to(0x8b);
    "guest RFLAGS.IF is 1 for an external interrupt": event => GUEST_RFLAGS = to(2);
    "the activity state exists": none => GUEST_ACTIVITY = to(4);
    "HLT needs privilege level 0": ring_3 => GUEST_ACTIVITY = to(1);
    "blocking by STI or MOV SS needs the active state": none => GUEST_INTERRUPTIBILITY = to(2), GUEST_ACTIVITY = to(1);
    "the activity state can take the event": event => GUEST_ACTIVITY = to(3);
    "the interruptibility state has no reserved bits": none => GUEST_INTERRUPTIBILITY = to(0x10);
    "blocking by STI and MOV SS exclude each other": none => GUEST_RFLAGS = to(0x202), GUEST_INTERRUPTIBILITY = to(3);
    "blocking by STI needs RFLAGS.IF": none => GUEST_INTERRUPTIBILITY = to(1);
    "nothing blocks the external interrupt": event => GUEST_INTERRUPTIBILITY = to(2);
    "MOV SS does not block the NMI": none => GUEST_INTERRUPTIBILITY = to(2), ENTRY_INTERRUPTION = to(0x8000_0202);
    "blocking by SMI is for system-management mode": none => GUEST_INTERRUPTIBILITY = to(4);
    "virtual NMIs are not blocked at an NMI": none => GUEST_INTERRUPTIBILITY = to(8), ENTRY_INTERRUPTION = to(0x8000_0202);
    "pending debug exceptions have no reserved bits": none => GUEST_PENDING_DEBUG = to(1 << 13);
    "a pending single step is that of RFLAGS.TF": none => GUEST_INTERRUPTIBILITY = to(2), GUEST_PENDING_DEBUG = to(1 << 14);
    "the VMCS link pointer is valid": none => VMCS_LINK = to(0x9001);
    "PDPTEs have no reserved bits": pae => GUEST_PDPTE3 = to(0x1003);
}
