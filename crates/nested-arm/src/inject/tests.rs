use super::*;
use crate::shadow::{WalkFault, WalkFaultKind};
use proptest::prelude::*;
use stile_sysreg::syndrome::Ec;

const VBAR: u64 = 0xffff_8000_1001_0000;
const HOST: u64 = HCR_E2H | HCR_TGE;

fn take(kind: Kind, pstate: u64, context: Context, hcr: u64) -> Entry {
    Entry::take(kind, pstate, context, &El2 { vbar: VBAR, sctlr: 0, hcr })
}

#[test]
fn vectors_by_origin_and_kind() {
    let cases = [
        (Kind::Synchronous, 0b0101, Context::El2, 0x200, 0b1001),
        (Kind::Irq, 0b0100, Context::El2, 0x080, 0b1000),
        (Kind::Fiq, 0b0101, Context::Guest, 0x500, 0b0101),
        (Kind::SError, 0b0000, Context::Guest, 0x580, 0b0000),
        // AArch32 user space: under an AArch64 kernel, and as the host's own.
        (Kind::Synchronous, 0b1_0000, Context::Guest, 0x400, 0b1_0000),
        (Kind::Synchronous, 0b1_0000, Context::HostEl0, 0x600, 0b1_0000),
    ];
    for (kind, pstate, context, offset, mode) in cases {
        let entry = take(kind, pstate, context, HCR_E2H);
        assert_eq!((entry.pc, entry.spsr), (VBAR + offset, mode), "{kind:?} {context:?}");
        assert_eq!(entry.pstate, 0x3c5);
    }
}

#[test]
fn flags_that_an_exception_changes() {
    let nz = 0b1100 << 28;
    // BTYPE, SS, UAO and IL are cleared; NZCV, DIT and PAN are preserved.
    let before = nz | 1 << 24 | 1 << 23 | 1 << 21 | 1 << 20 | 0b11 << 10 | 0b0101;
    assert_eq!(take(Kind::Irq, before, Context::Guest, HCR_E2H).pstate, nz | 1 << 24 | 0x3c5);
    assert_eq!(take(Kind::Irq, before, Context::Guest, HCR_E2H).spsr, before);
    // PAN is set on exceptions from the host's user space only, and only if SPAN is clear.
    let pan = 1 << 22;
    assert_eq!(take(Kind::Synchronous, 0, Context::HostEl0, HOST).pstate, pan | 0x3c5);
    assert_eq!(take(Kind::Synchronous, 0b0101, Context::Guest, HCR_E2H).pstate, 0x3c5);
    let spared = El2 { vbar: 0, sctlr: 1 << 23 | 1 << 44, hcr: HOST };
    assert_eq!(Entry::take(Kind::Synchronous, 0, Context::HostEl0, &spared).pstate, 1 << 12 | 0x3c5);
}

#[test]
fn legal_returns() {
    let cases = [
        (0b1001, 0, Context::El2, 0b0101),
        (0b1000, HOST, Context::El2, 0b0100),
        (0b0101, HCR_E2H, Context::Guest, 0b0101),
        (0b0100, 0, Context::Guest, 0b0100),
        (0b0000, HCR_E2H, Context::Guest, 0),
        (0b0000, HOST, Context::HostEl0, 0),
        (0b1_0000, HOST, Context::HostEl0, 0b1_0000),
    ];
    for (spsr, hcr, to, mode) in cases {
        let flags = 0b1010 << 28 | 1 << 21 | 0b11 << 10;
        assert_eq!(eret(spsr | flags, 0b0101, hcr, true), Return { to, pstate: flags | mode }, "{spsr:#b}");
    }
}

#[test]
fn illegal_returns_stay_with_il_set() {
    // EL3, reserved modes, EL1 under TGE, AArch32 modes but user mode.
    let cases = [(0b1100, 0), (0b1101, 0), (0b0001, 0), (0b0010, 0), (0b0101, HCR_TGE), (0b0100, HOST), (0b1_0011, 0), (0b1_1010, 0)];
    for (spsr, hcr) in cases {
        let illegal = eret(spsr | 0xf << 28 | 0b01 << 6 | 1 << 23, 0b0100, hcr, true);
        assert_eq!(illegal, Return { to: Context::El2, pstate: 0xf << 28 | 1 << 20 | 0b01 << 6 | 0b0100 }, "{spsr:#b}");
    }
    assert_eq!(eret(0b1_0000, 0b0101, 0, false).pstate, 1 << 20 | 0b0101);
}

#[test]
fn an_abort_preserves_the_access_syndrome() {
    let iss = 1 << 24 | 0b10 << 22 | 7 << 16 | 1 << 6;
    let esr = u64::from(Ec::DATA_ABORT_LOWER.bits()) << 26 | 1 << 25 | iss;
    let fault = WalkFault { kind: WalkFaultKind::Permission, level: 2 };
    assert_eq!(abort(Esr(esr | 0b00_0111), fault), esr | 0b00_1110);
    assert_eq!(hpfar(0x1234_5678_9abc), 0x12_3456_7890);
}

#[test]
fn forms_of_eret() {
    assert_eq!([0, 2, 3].map(|iss| eret_kind(Esr(0x1a << 26 | 1 << 25 | iss))), [EretKind::Plain, EretKind::KeyA, EretKind::KeyB]);
}

#[test]
fn routing_of_interrupts() {
    assert!(Kind::Irq.is_routed_to_el2(HCR_IMO) && Kind::Irq.is_routed_to_el2(HCR_TGE));
    assert!(!Kind::Irq.is_routed_to_el2(HCR_FMO | HCR_AMO));
    assert!(Kind::Synchronous.is_routed_to_el2(0));
}

#[test]
fn a_return_to_aarch32_is_illegal_without_it() {
    let after = eret(pstate::USER32, pstate::EL1H, HCR_E2H, false);
    assert_eq!(after, Return { to: Context::El2, pstate: pstate::EL1H | pstate::IL });
}

proptest! {
    /// For any SPSR_EL2 of L1, the processor never enters its own EL2 or EL3.
    #[test]
    fn no_return_leaves_the_vm(spsr: u64, mode in 4u64..=5, hcr: u64, has_aarch32: bool) {
        let after = eret(spsr, mode, hcr, has_aarch32);
        // AArch32 where no level has it would make the processor's own exception return illegal.
        let allowed = match (after.to, after.pstate & pstate::M) {
            (Context::HostEl0 | Context::Guest, pstate::USER32) => has_aarch32,
            (Context::El2, mode) => matches!(mode, pstate::EL1T | pstate::EL1H),
            (Context::HostEl0, mode) => mode == pstate::EL0T,
            (Context::Guest, mode) => matches!(mode, pstate::EL0T | pstate::EL1T | pstate::EL1H),
        };
        prop_assert!(allowed, "{after:x?}");
        prop_assert_eq!(after.pstate >> 32, 0);
    }

    /// A legal return to the interrupted state reverses the exception.
    #[test]
    fn a_return_reverses_an_exception(flags in any::<u32>(), mode in 0usize..3, hcr in prop::sample::select(&[0, HCR_E2H, HOST][..])) {
        let (mode, context) = [
            (pstate::EL1H, Context::El2),
            (pstate::EL0T, Context::below_el2(pstate::EL0T, hcr)),
            (pstate::EL1H, Context::Guest),
        ][mode];
        prop_assume!(context != Context::Guest || hcr & HCR_TGE == 0);
        let before = u64::from(flags) & !pstate::M | mode;
        let entry = take(Kind::Synchronous, before, context, hcr);
        prop_assert_eq!(eret(entry.spsr, entry.pstate, hcr, true), Return { to: context, pstate: before });
    }
}
