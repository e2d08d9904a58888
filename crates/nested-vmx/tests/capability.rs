//! The capability MSRs that L1 reads.

use stile_nested_vmx::capability::{Allowed, Capabilities, ept_vpid, msr};
use stile_nested_vmx::controls::{pin, secondary};
use stile_nested_vmx::model::{CR4, everything};

#[test]
fn registers_of_a_capable_processor() {
    let offered = everything().offered(CR4);
    assert_eq!(offered.msr(msr::BASIC), Some(0x00d8_1000_5356_0001));
    assert_eq!(offered.msr(msr::TRUE_PIN), Some(0x0000_00ff_0000_0016));
    assert_eq!(offered.msr(msr::PIN), offered.msr(msr::TRUE_PIN));
    assert_eq!(offered.msr(msr::PRIMARY), Some(0xfff9_fffe_0401_e172));
    assert_eq!(offered.msr(msr::TRUE_PRIMARY), Some(0xfff9_fffe_0400_6172));
    assert_eq!(offered.msr(msr::EXIT), Some(0x007f_efff_0003_6dff));
    assert_eq!(offered.msr(msr::TRUE_EXIT), Some(0x007f_efff_0003_6dfb));
    assert_eq!(offered.msr(msr::ENTRY), Some(0x0000_d3ff_0000_11ff));
    assert_eq!(offered.msr(msr::TRUE_ENTRY), Some(0x0000_d3ff_0000_11fb));
    assert_eq!(offered.msr(msr::SECONDARY), Some(0x0001_1bff_0000_0000));
    assert_eq!(offered.msr(msr::MISC), Some(0x6004_007f));
    assert_eq!(offered.msr(msr::EPT_VPID), Some(0x0000_0f01_0633_4040));
    assert_eq!(offered.msr(msr::CR4_FIXED1), Some(CR4 | 0x2000));
    // The 32-bit field 482EH has index 17H.
    assert_eq!(offered.msr(msr::VMCS_ENUM), Some(0x2e));
    assert_eq!(offered.msr(msr::VM_FUNCTIONS), None);
    assert_eq!(offered.msr(0x47f), None);
    assert_eq!(offered.msr(0x492), None);
}

#[test]
fn the_processor_limits_the_offer() {
    let mut processor = everything();
    processor.pin.may &= !pin::VIRTUAL_NMIS;
    processor.secondary.may &= !secondary::VPID;
    processor.ept_vpid = 0;
    let offered = processor.offered(CR4);
    assert!(!offered.pin.allows(pin::VIRTUAL_NMIS));
    assert_eq!(offered.ept_vpid >> 32, 0);
    assert_ne!(offered.ept_vpid & ept_vpid::PAGES_1G, 0);
    assert_eq!(offered.ept_vpid & ept_vpid::ACCESSED_DIRTY, 0);
}

#[test]
fn what_is_offered_can_be_read_back() {
    let offered = everything().offered(CR4);
    let read = Capabilities::read(|number| offered.msr(number).expect("a register that exists"));
    assert_eq!(read, offered);
}

#[test]
fn allowed_settings() {
    let allowed = Allowed { must: 0b0110, may: 0b1110 };
    assert!(allowed.accepts(0b0110) && allowed.accepts(0b1110));
    assert!(!allowed.accepts(0b0010) && !allowed.accepts(0b0111));
    assert_eq!(Allowed::from_msr(allowed.msr()), allowed);
}
