//! VMCS shadowing: the fields that L1 reads and writes without exits (SDM, "Virtual-Machine Control Data Structures", "VMCS Types: Ordinary
//! and Shadow"). L0 keeps them in a shadow VMCS: it fills that at each exit to L1, and reads what L1 wrote at each entry.
//!
//! Each field costs a comparison at exits, and one that L1 may write a VMREAD at entries. So they are those that KVM 6.1 as L1 accesses at
//! most exits of L2, by the ledger's rows for VMREAD and VMWRITE; docs/nested.md has the counts. A 64-bit field is shadowed only if L1
//! may not write it, since its upper half has a separate encoding, which exits.

use crate::field::{Field, Width};
use crate::fields::slot_of;
use crate::set::FieldSet;

/// Fields that L1 reads without an exit, but does not write: exit information, and guest state that L1 rarely writes.
pub const READ: [Field; 8] = [
    // At each exit.
    Field::EXIT_REASON,
    Field::VECTORING,
    Field::EXIT_LENGTH,
    // Of I/O and EPT violations.
    Field::EXIT_QUALIFICATION,
    Field::GUEST_PHYSICAL,
    // Of exceptions and interrupts.
    Field::EXIT_INTERRUPTION,
    // Whether L2 runs 64-bit code: each emulated instruction asks.
    Field::GUEST_CS_RIGHTS,
    // L2's privilege level: each hypercall asks.
    Field::GUEST_SS_RIGHTS,
];

/// Fields that L1 reads and writes without an exit.
pub const WRITTEN: [Field; 9] = [
    // Each emulated instruction is skipped.
    Field::GUEST_RIP,
    Field::GUEST_RFLAGS,
    Field::GUEST_INTERRUPTIBILITY,
    // The stack of L1's thread, at each entry from user space.
    Field::HOST_RSP,
    // Interrupts that L1 injects, and windows that it waits for.
    Field::ENTRY_INTERRUPTION,
    Field::PRIMARY_CONTROLS,
    // At each entry while L1 times a deadline of L2 by it.
    Field::PREEMPTION_TIMER,
    // With each interrupt for L2, unless interrupts are delivered virtually.
    Field::TPR_THRESHOLD,
    // At each entry with virtual-interrupt delivery.
    Field::GUEST_INTERRUPT_STATUS,
];

/// Number of shadowed fields.
pub const COUNT: usize = READ.len() + WRITTEN.len();

/// All shadowed fields with their slots: those that L1 writes are last.
pub const ALL: [(Field, usize); COUNT] = {
    let mut all = [(READ[0], 0); COUNT];
    let mut at = 0;
    while at < COUNT {
        let field = if at < READ.len() { READ[at] } else { WRITTEN[at - READ.len()] };
        all[at] = (field, slot_of(field));
        at += 1;
    }
    all
};

/// Whether a field is shadowed.
pub fn contains(field: Field) -> bool {
    ALL.iter().any(|(shadowed, _)| *shadowed == field)
}

/// Those of these fields that L1 has: others exit, and L0 answers that they do not exist. The processor has each field that L1 has
/// ([`crate::Capabilities::offered`]), so that L1's writes can be read from the shadow VMCS.
pub fn existing<'a>(fields: &'a [Field], of_l1: &'a FieldSet) -> impl Iterator<Item = Field> + 'a {
    fields.iter().copied().filter(|field| field.slot().is_some_and(|slot| of_l1.contains(slot)))
}

/// Lets accesses to fields exit, or not, in a VMREAD or VMWRITE bitmap (SDM, "VMCS Shadowing Bitmap Addresses"), whose bits are set for
/// fields that exit.
pub fn set_exits(bitmap: &mut [u8], fields: impl IntoIterator<Item = Field>, exits: bool) {
    for Field(encoding) in fields {
        if let Some(byte) = bitmap.get_mut(encoding as usize / 8) {
            let bit = 1 << (encoding % 8);
            *byte = if exits { *byte | bit } else { *byte & !bit };
        }
    }
}

const _: () = {
    let mut at = 0;
    while at < WRITTEN.len() {
        assert!(!matches!(WRITTEN[at].width(), Width::Bits64), "the upper half of it exits");
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::fields::FIELDS;

    #[test]
    fn a_field_is_shadowed_once_and_exists_always() {
        let fields = ALL.map(|(field, _)| field);
        for (at, field) in fields.iter().enumerate() {
            assert!(!fields[..at].contains(field), "{field:?}");
            let row = FIELDS.iter().find(|row| row.field == *field).expect("a field");
            assert_eq!(field.slot(), Some(ALL[at].1));
            // Processors with VMCS shadowing have the first three, and the caller leaves out the last.
            let known = [Field::GUEST_PHYSICAL, Field::PREEMPTION_TIMER, Field::TPR_THRESHOLD, Field::GUEST_INTERRUPT_STATUS];
            let is_known = known.contains(field);
            assert!(matches!(row.needs, crate::fields::Needs::Nothing) || is_known, "{}", row.name);
        }
    }

    /// A processor may deliver virtual interrupts without virtualizing APIC registers.
    #[test]
    fn the_interrupt_status_exists_with_virtual_interrupt_delivery() {
        use crate::capability::{Allowed, Capabilities};
        use crate::controls::{pin, primary, secondary};
        let has_status = |secondary| {
            let processor = Capabilities {
                pin: Allowed { must: 0, may: pin::PREEMPTION_TIMER | pin::EXTERNAL_INTERRUPTS },
                primary: Allowed { must: 0, may: primary::TPR_SHADOW | primary::SECONDARY },
                secondary: Allowed { must: 0, may: secondary | secondary::EPT },
                ..Capabilities::default()
            };
            let of_l1 = processor.offered(0).existing_fields();
            assert!(existing(&WRITTEN[..8], &of_l1).eq(WRITTEN[..8].iter().copied()));
            existing(&WRITTEN, &of_l1).any(|field| field == Field::GUEST_INTERRUPT_STATUS)
        };
        assert!(has_status(secondary::INTERRUPT_DELIVERY));
        assert!(has_status(secondary::INTERRUPT_DELIVERY | secondary::APIC_REGISTERS));
        assert!(!has_status(secondary::APIC_REGISTERS | secondary::X2APIC_MODE | secondary::APIC_ACCESSES));
    }

    #[test]
    fn read_only_data_is_not_written() {
        assert!(WRITTEN.iter().all(|field| field.kind() != Kind::ReadOnly));
    }

    #[test]
    fn bitmaps_change_for_nothing_else() {
        let mut bitmap = [0xff; 4096];
        set_exits(&mut bitmap, WRITTEN, false);
        let open: std::vec::Vec<_> = (0..8 * 4096).filter(|bit| bitmap[bit / 8] >> (bit % 8) & 1 == 0).collect();
        let mut expected: std::vec::Vec<_> = WRITTEN.iter().map(|field| field.0 as usize).collect();
        expected.sort_unstable();
        assert_eq!(open, expected);
        set_exits(&mut bitmap, WRITTEN, true);
        assert_eq!(bitmap, [0xff; 4096]);
    }
}
