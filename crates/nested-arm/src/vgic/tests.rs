//! L1's list registers on the processor: loaded, changed by L2 and unloaded; the status registers computed from them.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;
use stile_vgic::{Maintenance, Vmcr};

/// A processor of which only the list registers are modelled.
struct Processor([ListRegister; 16]);

impl Processor {
    const EMPTY: Self = Self([ListRegister::INVALID; 16]);

    /// L2 acknowledges or ends the interrupt in a list register. Returns the physical INTID deactivated with
    /// it.
    fn step(&mut self, n: usize) -> Option<u32> {
        let lr = self.0[n].0;
        let state = match lr >> 62 {
            0b01 => 0b10,
            0b10 => 0b00,
            0b11 => 0b01,
            _ => return None,
        };
        self.0[n].0 = lr & !lr::STATE | state << 62;
        (lr >> 63 == 1 && self.0[n].hw()).then(|| self.0[n].physical_intid())
    }
}

impl ListRegisters for Processor {
    fn read(&self, n: usize) -> ListRegister {
        self.0[n]
    }

    fn write(&mut self, n: usize, value: ListRegister) {
        self.0[n] = value;
    }

    fn invalid(&self) -> u16 {
        unimplemented!("not for L1's list registers")
    }

    fn set_maintenance(&mut self, _: Maintenance) {}

    fn take_eoi_count(&mut self) -> u32 {
        0
    }

    fn vmcr(&self) -> Vmcr {
        Vmcr(0)
    }

    fn running_priority(&self) -> u8 {
        0xff
    }

    fn physical_line(&self, _: u32) -> Option<bool> {
        None
    }

    fn deactivate_physical(&mut self, _: u32) {}
}

const PENDING: u64 = ListRegister::PENDING;
const ACTIVE: u64 = ListRegister::ACTIVE;
const HW: u64 = ListRegister::HW;
const EOI: u64 = ListRegister::EOI;
const VIRTUAL_TIMER: u64 = 27;

fn page(lrs: &[u64], control: u64) -> Page {
    let page = Page::new();
    for (n, &lr) in lrs.iter().enumerate() {
        page.set(vncr::ich_lr(n), lr);
    }
    page.set(vncr::ICH_HCR_EL2, control);
    page
}

/// A timer interrupt: INTID 27 for both L1 and L2.
const TIMER: u64 = HW | VIRTUAL_TIMER << 32 | VIRTUAL_TIMER;

#[test]
fn a_timer_is_deactivated_by_the_processor() {
    let page = page(&[0, PENDING | TIMER], 1);
    let mut processor = Processor::EMPTY;
    let on = OnProcessor::load(&page, 4, &mut processor, |intid| (intid == 27).then_some(30));
    assert_eq!(processor.0[1].0, PENDING | HW | 30 << 32 | VIRTUAL_TIMER);
    assert_eq!([processor.step(1), processor.step(1)], [None, Some(30)]);
    let ended: Vec<_> = on.unload(&page, &mut processor, 0).iter().collect();
    assert_eq!(ended, [Ended { intid: 27, by_processor: true }]);
    assert_eq!(page.get(vncr::ich_lr(1)), TIMER);
    assert!(processor.0[1] == ListRegister::INVALID);
}

#[test]
fn an_unbacked_interrupt_is_deactivated_by_l0() {
    let page = page(&[ACTIVE | TIMER], 1);
    let mut processor = Processor::EMPTY;
    let on = OnProcessor::load(&page, 4, &mut processor, |_| None);
    // Without a physical interrupt EOI replaces HW, so that L0, not L1, gets a maintenance interrupt at the deactivation.
    assert_eq!(processor.0[0].0, ACTIVE | EOI | VIRTUAL_TIMER);
    assert_eq!(processor.step(0), None);
    assert_eq!(on.unload(&page, &mut processor, 0).iter().collect::<Vec<_>>(), [Ended { intid: 27, by_processor: false }]);
    assert_eq!(Status::of(&page, 4).misr, 0);
    // Still active: nothing has ended.
    page.set(vncr::ich_lr(0), ACTIVE | TIMER);
    let on = OnProcessor::load(&page, 4, &mut processor, |_| None);
    assert_eq!(on.unload(&page, &mut processor, 0).iter().count(), 0);
    assert_eq!(page.get(vncr::ich_lr(0)), ACTIVE | TIMER);
}

#[test]
fn a_physical_interrupt_is_linked_once() {
    let page = page(&[PENDING | TIMER, ACTIVE | TIMER], 1);
    let mut processor = Processor::EMPTY;
    let on = OnProcessor::load(&page, 4, &mut processor, |_| Some(27));
    assert!(processor.0[0].hw() && !processor.0[1].hw());
    assert_eq!(on.unload(&page, &mut processor, 0).iter().count(), 0);
}

#[test]
fn maintenance_conditions() {
    let cases: [(&[u64], u64, u64, u64); 13] = [
        (&[], 1, 0, 0),
        (&[EOI | 40], 1, 0, 1 << 0),
        (&[EOI | PENDING | 40], 1, 0, 0),
        (&[EOI | HW | 40], 1, 0, 0),
        (&[PENDING | 40], hcr::UIE, 0, 1 << 1),
        (&[PENDING | 40, ACTIVE | 41], hcr::UIE, 0, 0),
        (&[], hcr::LRENPIE | 3 << 27, 0, 1 << 2),
        (&[], hcr::LRENPIE, 0, 0),
        (&[ACTIVE | 40], hcr::NPIE, 0, 1 << 3),
        (&[ACTIVE | 40, PENDING | 41], hcr::NPIE, 0, 0),
        (&[PENDING | ACTIVE | 40], hcr::NPIE, 0, 1 << 3),
        (&[], 0xf << 4, vmcr::VENG0, 1 << 4 | 1 << 7),
        (&[], 0xf << 4, vmcr::VENG1, 1 << 5 | 1 << 6),
    ];
    for (lrs, control, vmcr, misr) in cases {
        let page = page(lrs, control);
        page.set(vncr::ICH_VMCR_EL2, vmcr);
        let status = Status::of(&page, 4);
        assert_eq!(status.misr, misr, "{lrs:x?} {control:#x}");
        assert_eq!(status.asserts_maintenance(&page), misr != 0 && control & hcr::EN != 0);
    }
}

#[test]
fn unused_list_registers() {
    let page = page(&[PENDING | 40, EOI | 41, HW | EOI | 42, 43], 1);
    let status = Status::of(&page, 5);
    assert_eq!((status.eisr, status.elrsr), (0b00010, 0b11100));
    assert!(has_pending(&page, 4));
    page.set(vncr::ich_lr(0), PENDING | ACTIVE | 40);
    assert!(!has_pending(&page, 4));
}

proptest! {
    /// Whatever L1 writes: only physical interrupts that `backing` returns are linked, each once; only state
    /// bits change in the page; and an L1 interrupt has ended exactly if its list register became invalid.
    #[test]
    fn any_list_registers(
        lrs in any::<[u64; 16]>(),
        control: u64,
        count in 1usize..=16,
        backed in any::<u64>(),
        steps in prop::collection::vec(0usize..16, 0..40),
    ) {
        let page = page(&lrs, control);
        let mut processor = Processor::EMPTY;
        let physical = |intid: u32| (backed >> (intid % 64) & 1 != 0).then_some(16 + intid % 16);
        let on = OnProcessor::load(&page, count, &mut processor, physical);
        let loaded = processor.0;
        let mut seen = Vec::new();
        for (n, lr) in loaded.iter().enumerate() {
            prop_assert_eq!(lr.invalid(), n >= count || ListRegister(lrs[n]).invalid());
            if lr.hw() && !lr.invalid() {
                let expected = physical(ListRegister(lrs[n]).physical_intid());
                prop_assert_eq!(Some(lr.physical_intid()), expected);
                prop_assert!(!seen.contains(&lr.physical_intid()));
                seen.push(lr.physical_intid());
            }
        }
        for n in steps {
            if let Some(intid) = processor.step(n) {
                prop_assert!(seen.contains(&intid));
            }
        }
        let expected: Vec<_> = (0..count)
            .filter(|&n| ListRegister(lrs[n]).hw() && !loaded[n].invalid() && processor.0[n].invalid())
            .map(|n| Ended { intid: ListRegister(lrs[n]).physical_intid(), by_processor: loaded[n].hw() })
            .collect();
        let states = processor.0;
        let ended: Vec<_> = on.unload(&page, &mut processor, 7 << 27).iter().collect();
        prop_assert_eq!(ended, expected);
        for n in 0..16 {
            let now = page.get(vncr::ich_lr(n));
            prop_assert_eq!(now & !lr::STATE, lrs[n] & !lr::STATE);
            let state = if n < count { states[n].0 } else { lrs[n] };
            prop_assert_eq!(now & lr::STATE, state & lr::STATE);
        }
        prop_assert_eq!(page.get(vncr::ICH_HCR_EL2), control & !hcr::EOI_COUNT | 7 << 27);
        prop_assert!(processor.0.iter().all(|lr| *lr == ListRegister::INVALID));
    }
}
