//! Messages that an I/O APIC sends together, against [`Pages::is_target`] for each of them.

use proptest::prelude::*;
use stile_apic::offset::{DFR, LDR, SVR, TPR};
use stile_apic::{Acceptors, Arbitration, Batch, Delivery, IoApic, LocalApic, PINS, Pages};

/// A local APIC: mode, whether software has enabled it, logical address, model and task priority.
#[derive(Clone, Debug)]
struct Local {
    mode: u64,
    enabled: bool,
    ldr: u8,
    dfr: u32,
    priority: u8,
}

fn local() -> impl Strategy<Value = Local> {
    let dfr = prop_oneof![4 => Just(0xf), 4 => Just(0), 1 => 0..0x10_u32];
    // Disabled, xAPIC mode, x2APIC mode.
    let mode = prop_oneof![1 => Just(0_u64), 4 => Just(2), 2 => Just(3)];
    (mode, prop::bool::weighted(0.8), any::<u8>(), dfr, 0..4_u8).prop_map(|(mode, enabled, ldr, dfr, priority)| Local {
        mode,
        enabled,
        ldr,
        dfr: dfr << 28 | 0x0fff_ffff,
        priority: priority << 4,
    })
}

fn made(id: u32, from: &Local) -> &'static Pages {
    let pages: &Pages = Box::leak(Box::default());
    pages.reset(id, false);
    let mut apic = LocalApic::new(pages);
    for (register, value) in [(DFR, from.dfr), (LDR, u32::from(from.ldr) << 24), (TPR, from.priority.into())] {
        apic.write(register, value, 0);
    }
    apic.write(SVR, 0xff | u32::from(from.enabled) << 8, 0);
    if from.mode & 2 == 0 {
        apic.set_base(pages.base() & !(3 << 10), 39).unwrap();
    } else if from.mode == 3 {
        apic.set_base(pages.base() | 3 << 10, 39).unwrap();
    }
    pages
}

/// All inputs with these destinations: identifier, and whether it is logical.
fn batch(delivery: u32, destinations: &[(u8, bool)]) -> Batch {
    let mut io_apic = IoApic::new();
    for (pin, (id, logical)) in destinations.iter().enumerate() {
        io_apic.write(0, 0x11 + 2 * pin as u32);
        io_apic.write(0x10, u32::from(*id) << 24);
        io_apic.write(0, 0x10 + 2 * pin as u32);
        io_apic.write(0x10, 1 << 15 | u32::from(*logical) << 11 | delivery << 8 | 0x55);
    }
    (0..destinations.len()).for_each(|pin| io_apic.set_line(pin, true));
    let batch = io_apic.next_batch().unwrap();
    assert!(io_apic.next_batch().is_none(), "they are sent together");
    batch
}

const SENDER: u32 = u32::MAX;

proptest! {
    /// Identifiers are those of the last vCPUs, or of the first ones.
    #[test]
    fn messages_together_reach_whom_each_one_reaches(
        locals in prop::collection::vec(local(), 1..20),
        destinations in prop::collection::vec((prop_oneof![0..20_u8, 240..=255_u8, any::<u8>()], any::<bool>()), 1..=PINS),
        last: bool,
    ) {
        let first = if last { 256 - locals.len() } else { 0 };
        let apics: Vec<_> = locals.iter().enumerate().map(|(index, local)| made((first + index) as u32, local)).collect();

        let fixed = batch(Delivery::Fixed as u32, &destinations);
        let is_addressed = fixed.addresses();
        let mut acceptors = Acceptors::default();
        for apic in &apics {
            let address = apic.address();
            let expected = fixed.each().any(|(_, destination)| apic.is_target(destination, SENDER));
            prop_assert_eq!(address.is_some_and(&is_addressed), expected);
            if let Some(address) = address.filter(|_| expected && apic.enabled()) {
                acceptors.add(address);
            }
        }
        let accepted = |destination| apics.iter().any(|apic| apic.is_target(destination, SENDER) && apic.enabled());
        let expected = fixed.each().filter(|(_, destination)| accepted(*destination)).fold(0, |pins, (pin, _)| pins | 1 << pin);
        prop_assert_eq!(fixed.pins_to(&acceptors), expected);

        let lowest = batch(Delivery::LowestPriority as u32, &destinations);
        let mut arbitration = Arbitration::default();
        for (index, apic) in apics.iter().enumerate() {
            if let Some(address) = apic.address().filter(|_| apic.enabled()) {
                arbitration.add(address, apic.processor_priority(), index as u16);
            }
        }
        for (_, destination) in lowest.each() {
            if !matches!(destination, stile_apic::Destination::Physical(_)) {
                let targets = apics.iter().enumerate().filter(|(_, apic)| apic.is_target(destination, SENDER) && apic.enabled());
                let expected = targets.min_by_key(|(_, apic)| apic.processor_priority()).map(|(index, _)| index as u16);
                prop_assert_eq!(arbitration.lowest(destination), expected);
            }
        }
    }
}
