//! A processor with each feature, and a VMCS that enters a guest on it: for tests.

use crate::capability::{Allowed, Capabilities, REVISION};
use crate::checks::{Memory, Processor};
use crate::controls::{entry, exit, pin, primary, secondary};
use crate::field::Field;
use crate::vmcs12::Vmcs12;

/// CR4 with all that 4-level paging has, without VMXE.
pub const CR4: u64 = 0x0037_07ff;

/// A processor with all known features.
pub const fn everything() -> Capabilities {
    const fn all(must: u32) -> Allowed {
        Allowed { must, may: u32::MAX }
    }
    Capabilities {
        basic: 0x00d8_1000_0000_0004,
        pin: all(pin::DEFAULT1),
        primary: all(primary::DEFAULT1 & !primary::TRUE_MAY_BE_0),
        secondary: all(0),
        exit: all(exit::DEFAULT1 & !exit::TRUE_MAY_BE_0),
        entry: all(entry::DEFAULT1 & !entry::TRUE_MAY_BE_0),
        misc: u64::MAX,
        cr0: (0x8000_0021, 0xffff_ffff),
        cr4: (0x2000, 0x0037_67ff),
        ept_vpid: u64::MAX,
        vm_functions: u64::MAX,
    }
}

/// L1's capabilities with each feature that [`crate::checks`] has rules for.
pub const fn featured() -> Capabilities {
    Capabilities {
        basic: 0x00d8_1000_0000_0000 | REVISION as u64,
        pin: Allowed { must: 0x16, may: 0xff },
        primary: Allowed { must: 0x0400_6172, may: 0xfff9_fffe },
        secondary: Allowed { must: 0, may: 0x0001_5fff },
        exit: Allowed { must: 0x0003_6dfb, may: 0x007f_efff },
        entry: Allowed { must: 0x11fb, may: 0xd3ff },
        misc: 0x6004_017f,
        cr0: (0x8000_0021, 0xffff_ffff),
        cr4: (0x2000, CR4 | 0x2000),
        ept_vpid: 0x0f01_0673_4141,
        vm_functions: 0,
    }
}

/// L1's processor with these capabilities.
pub const fn processor(capabilities: &Capabilities) -> Processor<'_> {
    Processor { capabilities, physical_bits: 40, linear_bits: 48, efer: 0xd01, debugctl: 0b11, is_long: true, current: 0x7000 }
}

/// L1's memory: each word has this value.
#[derive(Clone, Copy, Debug)]
pub struct Constant(pub u64);

impl Memory for Constant {
    fn read(&self, _: u64) -> Option<u64> {
        Some(self.0)
    }
}

/// A VMCS for a guest in 64-bit mode, with controls that `capabilities` offer.
pub fn valid(capabilities: &Capabilities) -> Vmcs12 {
    let mut vmcs = Vmcs12::new();
    let optional = |allowed: Allowed, wanted: u32| u64::from(allowed.must | wanted & allowed.may);
    let pin = optional(capabilities.pin, pin::EXTERNAL_INTERRUPTS | pin::NMIS | pin::VIRTUAL_NMIS);
    let wanted = primary::IO_BITMAPS | primary::MSR_BITMAPS | primary::TPR_SHADOW | primary::SECONDARY;
    let primary = optional(capabilities.primary, wanted);
    let secondary = optional(capabilities.secondary, secondary::EPT | secondary::VPID);
    let exit = optional(capabilities.exit, exit::HOST_64 | exit::LOAD_PAT | exit::LOAD_EFER | exit::ACKNOWLEDGE_INTERRUPT);
    let entry = optional(capabilities.entry, entry::IA32E_GUEST | entry::LOAD_DEBUG | entry::LOAD_PAT | entry::LOAD_EFER);
    let fields = [
        (Field::PIN_CONTROLS, pin),
        (Field::PRIMARY_CONTROLS, primary),
        (Field::SECONDARY_CONTROLS, secondary),
        (Field::EXIT_CONTROLS, exit),
        (Field::ENTRY_CONTROLS, entry),
        (Field::IO_BITMAP_A, 0x1000),
        (Field::IO_BITMAP_B, 0x2000),
        (Field::MSR_BITMAP, 0x3000),
        (Field::VIRTUAL_APIC, 0x4000),
        (Field::APIC_ACCESS, 0x5000),
        (Field::EPT_POINTER, 0x601e),
        (Field::VPID, 1),
        (Field::VMCS_LINK, u64::MAX),
    ];
    let registers = [
        (Field::HOST_CR0, 0x8005_0033),
        (Field::HOST_CR3, 0x10_0000),
        (Field::HOST_CR4, 0x2020),
        (Field::HOST_PAT, 0x0007_0406_0007_0406),
        (Field::HOST_EFER, 0xd01),
        (Field::HOST_CS, 8),
        (Field::HOST_TR, 0x40),
        (Field::HOST_RIP, 0xffff_ffff_8000_0000),
        (Field::GUEST_CR0, 0x8005_0033),
        (Field::GUEST_CR3, 0x20_0000),
        (Field::GUEST_CR4, 0x2020),
        (Field::GUEST_DR7, 0x400),
        (Field::GUEST_PAT, 0x0007_0406_0007_0406),
        (Field::GUEST_EFER, 0xd01),
        (Field::GUEST_RIP, 0xffff_ffff_8100_0000),
        (Field::GUEST_RFLAGS, 0x2),
        (Field::GUEST_GDTR_LIMIT, 0x7f),
        (Field::GUEST_IDTR_LIMIT, 0xfff),
    ];
    for (field, value) in fields.into_iter().chain(registers) {
        vmcs.set(field, value);
    }
    for number in 0..8 {
        let rights = match number {
            1 => 0xa09b,
            6 => 0x1_0000,
            7 => 0x8b,
            _ => 0xc093,
        };
        vmcs.set(Field(Field::GUEST_ES_RIGHTS.0 + 2 * number), rights);
        vmcs.set(Field(Field::GUEST_ES_LIMIT.0 + 2 * number), if number < 6 { 0xffff_ffff } else { 0x67 });
    }
    vmcs.set(Field::GUEST_CS, 0x10);
    vmcs.set(Field::GUEST_TR, 0x40);
    vmcs
}
