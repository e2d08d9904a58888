use super::*;
use proptest::prelude::*;

fn of(op1: u8, crn: u8, crm: u8, op2: u8, xt: u64) -> Option<Tlbi> {
    decode(SysReg::new(1, op1, crn, crm, op2), xt)
}

const fn tlbi(regime: Regime, domain: Domain, scope: Scope) -> Option<Tlbi> {
    Some(Tlbi { regime, domain, scope, no_xs: false })
}

use Domain::{Inner, Local, Outer};
use Regime::{El2, El10};

/// Encodings as produced by assemblers.
#[test]
fn instructions_by_name() {
    let ipa = |last_level| Scope::Ipa { start: 0x1234_5000, bytes: None, last_level };
    let va = |asid, last_level| Scope::Va { start: 0x1234_5000, bytes: 4096, asid, last_level };
    let cases = [
        ("ALLE1", (4, 7, 4), tlbi(El10, Local, Scope::All)),
        ("ALLE1IS", (4, 3, 4), tlbi(El10, Inner, Scope::All)),
        ("ALLE1OS", (4, 1, 4), tlbi(El10, Outer, Scope::All)),
        ("ALLE2", (4, 7, 0), tlbi(El2, Local, Scope::All)),
        ("ALLE2IS", (4, 3, 0), tlbi(El2, Inner, Scope::All)),
        ("VMALLE1", (0, 7, 0), tlbi(El10, Local, Scope::Vmid)),
        ("VMALLE1IS", (0, 3, 0), tlbi(El10, Inner, Scope::Vmid)),
        ("VMALLS12E1", (4, 7, 6), tlbi(El10, Local, Scope::VmidBoth)),
        ("VMALLS12E1IS", (4, 3, 6), tlbi(El10, Inner, Scope::VmidBoth)),
        ("VMALLS12E1OS", (4, 1, 6), tlbi(El10, Outer, Scope::VmidBoth)),
        ("ASIDE1IS", (0, 3, 2), tlbi(El10, Inner, Scope::Asid(7))),
        ("VAE1IS", (0, 3, 1), tlbi(El10, Inner, va(Some(7), false))),
        ("VAALE1", (0, 7, 7), tlbi(El10, Local, va(None, true))),
        ("VAE2IS", (4, 3, 1), tlbi(El2, Inner, va(Some(7), false))),
        ("VALE2OS", (4, 1, 5), tlbi(El2, Outer, va(Some(7), true))),
        ("IPAS2E1IS", (4, 0, 1), tlbi(El10, Inner, ipa(false))),
        ("IPAS2LE1IS", (4, 0, 5), tlbi(El10, Inner, ipa(true))),
        ("IPAS2E1", (4, 4, 1), tlbi(El10, Local, ipa(false))),
        ("IPAS2E1OS", (4, 4, 0), tlbi(El10, Outer, ipa(false))),
        ("IPAS2LE1OS", (4, 4, 4), tlbi(El10, Outer, ipa(true))),
        ("nothing", (0, 3, 4), None),
        ("nothing", (4, 3, 2), None),
        ("nothing", (4, 2, 3), None),
        ("nothing", (1, 3, 0), None),
    ];
    for (name, (op1, crm, op2), expected) in cases {
        let xt = 7 << 48 | 0x1_2345;
        assert_eq!(of(op1, 8, crm, op2, xt), expected, "{name}");
        assert_eq!(of(op1, 9, crm, op2, xt), expected.map(|tlbi| Tlbi { no_xs: true, ..tlbi }), "{name}NXS");
    }
    assert_eq!(of(0, 7, 8, 0, 0), None);
}

#[test]
fn ranges() {
    // 3 * 2^6 granules of 4 KiB from granule 0x80000.
    let xt = 1 << 46 | 1 << 44 | 2 << 39 | 0x8_0000;
    let expected = Scope::Ipa { start: 0x8000_0000, bytes: Some(192 * 4096), last_level: false };
    for (crm, op2, domain) in [(0, 2, Inner), (4, 2, Local), (4, 3, Outer)] {
        assert_eq!(of(4, 8, crm, op2, xt), tlbi(El10, domain, expected));
    }
    // RVAALE1IS of the last granule of 16 KiB, with a negative address.
    let xt = 2 << 46 | 0x1f_ffff_ffff;
    let expected = Scope::Va { start: 0xffff_ffff_ffff_c000, bytes: 2 << 14, asid: None, last_level: true };
    assert_eq!(of(0, 8, 2, 7, xt), tlbi(El10, Inner, expected));
    // The largest range, and a reserved granule.
    let most = Scope::Ipa { start: 0, bytes: Some(1 << (16 + 16 + 5)), last_level: true };
    assert_eq!(of(4, 8, 0, 6, 3 << 46 | 3 << 44 | 0x1f << 39), tlbi(El10, Inner, most));
    let none = Scope::Ipa { start: 0, bytes: Some(0), last_level: true };
    assert_eq!(of(4, 8, 0, 6, 3 << 44), tlbi(El10, Inner, none));
}

#[test]
fn hints_and_signs() {
    for (ttl, bytes) in [(0b0110, Some(2 << 20)), (0b1011, Some(16 << 10)), (0b1110, Some(512 << 20)), (0b0011, None), (0b0100, None)] {
        let scope = of(4, 8, 0, 1, ttl << 44 | 0x10).map(|tlbi| tlbi.scope);
        assert_eq!(scope, Some(Scope::Ipa { start: 0x1_0000, bytes, last_level: false }));
    }
    let kernel = of(0, 8, 3, 3, 0xfff_8000_1000).map(|tlbi| tlbi.scope);
    assert_eq!(kernel, Some(Scope::Va { start: 0xffff_f800_0100_0000, bytes: 4096, asid: None, last_level: false }));
}

proptest! {
    #[test]
    fn any_operand_decodes(bits in any::<(u8, u8, u8, u8)>(), xt: u64) {
        let _ = of(bits.0, bits.1, bits.2, bits.3, xt);
    }
}
