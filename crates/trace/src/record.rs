//! The record of an event.

/// Shift of the vCPU in the first word; the ticks are below it.
pub const ID_SHIFT: u32 = 48;
/// The ticks of the first word.
pub const TICKS_MASK: u64 = (1 << ID_SHIFT) - 1;
/// Shift of the ledger's row in the second word of an exit: 5 bits above the ticks, because the exit path has the row's offset.
pub const ROW_SHIFT: u32 = 37;
/// Shift of the kind in the second word.
pub const KIND_SHIFT: u32 = 60;
/// Stands for no vCPU.
pub const NO_VCPU: u16 = 0;
/// Set in the number of a vCPU. Below it are the numbers of the VM and, in 8 bits, of the vCPU.
pub const IS_VCPU: u16 = 1 << 15;

/// Bits of a vCPU's number in its VM.
const VCPU_BITS: u32 = 8;
const VCPU_MASK: u16 = (1 << VCPU_BITS) - 1;
/// Bits of a row's number.
const ROW_MASK: u64 = 0x7ff;
/// Shift of the reason for which a vCPU is left, and of the first target of an IPI.
const WHY_SHIFT: u32 = 48;
/// Shift of an IPI's interrupt number.
const INTID_SHIFT: u32 = 32;

/// An event on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time of the record: the low 48 bits of the counter.
    pub ticks: u64,
    /// The vCPU that was loaded: [`IS_VCPU`] + 256 × VM + vCPU, or [`NO_VCPU`].
    pub vcpu: u16,
    /// Its kind.
    pub kind: Kind,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An exit, which ended with the entry of the same vCPU.
    Exit {
        /// The ledger's row.
        row: u16,
        /// Its duration.
        took: u32,
    },
    /// An exit, after which the scheduler chose. An [`Enter`](Self::Enter) follows.
    Leave {
        /// The ledger's row.
        row: u16,
        /// Its duration, without the scheduler's.
        took: u32,
        /// Reason: the number of the hypervisor's `Leave`.
        why: u8,
    },
    /// The vCPU that the scheduler chose is entered.
    Enter,
    /// An interrupt became pending for the vCPU, by the exit that ends next or by the entry before.
    Inject {
        /// The interrupt's number.
        intid: u32,
    },
    /// The vCPU sent an interrupt to others of its VM, in the exit that ends next.
    Ipi {
        /// The interrupt's number.
        intid: u16,
        /// The number of a vCPU, a multiple of 32.
        first: u8,
        /// A bit for each vCPU, from that one on.
        targets: u32,
    },
    /// The vCPU's timer will interrupt it at this time: it waits, by the exit that ends next.
    Timer,
    /// The CPU takes a request of another one to reschedule, which came with a kick.
    Kick {
        /// The CPU that sent it; the last one, if there were several.
        from: u16,
    },
    /// The CPU records from now on.
    Begin,
    /// The CPU records no more.
    End,
}

impl Record {
    /// The words of the record. The first is not 0: a ring takes that for a free slot.
    pub const fn encode(self) -> [u64; 2] {
        let ticks = if self.ticks & TICKS_MASK == 0 { 1 } else { self.ticks & TICKS_MASK };
        let (number, rest) = match self.kind {
            Kind::Exit { row, took } => (0, exit(row, took)),
            Kind::Leave { row, took, why } => (1, exit(row, took) | (why as u64) << WHY_SHIFT),
            Kind::Enter => (2, 0),
            Kind::Inject { intid } => (3, intid as u64),
            Kind::Ipi { intid, first, targets } => (4, targets as u64 | (intid as u64) << INTID_SHIFT | (first as u64) << WHY_SHIFT),
            Kind::Begin => (5, 0),
            Kind::End => (6, 0),
            Kind::Timer => (7, 0),
            Kind::Kick { from } => (8, from as u64),
        };
        [ticks | (self.vcpu as u64) << ID_SHIFT, rest | number << KIND_SHIFT]
    }

    /// Decodes these words; `None` if they are not a valid record.
    pub const fn decode([first, second]: [u64; 2]) -> Option<Record> {
        let (row, took) = ((second >> ROW_SHIFT & ROW_MASK) as u16, second as u32);
        let kind = match second >> KIND_SHIFT {
            0 => Kind::Exit { row, took },
            1 => Kind::Leave { row, took, why: (second >> WHY_SHIFT) as u8 },
            2 => Kind::Enter,
            3 => Kind::Inject { intid: second as u32 },
            4 => Kind::Ipi { intid: (second >> INTID_SHIFT) as u16, first: (second >> WHY_SHIFT) as u8, targets: second as u32 },
            5 => Kind::Begin,
            6 => Kind::End,
            7 => Kind::Timer,
            8 => Kind::Kick { from: second as u16 },
            _ => return None,
        };
        Some(Record { ticks: first & TICKS_MASK, vcpu: (first >> ID_SHIFT) as u16, kind })
    }
}

const fn exit(row: u16, took: u32) -> u64 {
    took as u64 | (row as u64 & ROW_MASK) << ROW_SHIFT
}

/// The counter's value whose low 48 bits are `ticks`, nearest to `near`.
pub const fn extend(ticks: u64, near: u64) -> u64 {
    let distance = ticks.wrapping_sub(near) << (u64::BITS - ID_SHIFT);
    near.wrapping_add((distance.cast_signed() >> (u64::BITS - ID_SHIFT)).cast_unsigned())
}

/// The number of a vCPU in records.
pub const fn id_of(vm: u8, vcpu: u8) -> u16 {
    IS_VCPU | (vm as u16) << VCPU_BITS | vcpu as u16 & VCPU_MASK
}

/// The VM and the vCPU of such a number; `None` for [`NO_VCPU`].
pub const fn vcpu_of(id: u16) -> Option<(u8, u8)> {
    if id & IS_VCPU == 0 {
        return None;
    }
    Some((((id & !IS_VCPU) >> VCPU_BITS) as u8, (id & VCPU_MASK) as u8))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            (0..1024_u16, any::<u32>()).prop_map(|(row, took)| Kind::Exit { row, took }),
            (0..1024_u16, any::<u32>(), any::<u8>()).prop_map(|(row, took, why)| Kind::Leave { row, took, why }),
            Just(Kind::Enter),
            any::<u32>().prop_map(|intid| Kind::Inject { intid }),
            (any::<u16>(), any::<u8>(), any::<u32>()).prop_map(|(intid, first, targets)| Kind::Ipi { intid, first, targets }),
            Just(Kind::Begin),
            Just(Kind::End),
            Just(Kind::Timer),
            any::<u16>().prop_map(|from| Kind::Kick { from }),
        ]
    }

    proptest! {
        #[test]
        fn records_survive(ticks in 1..1_u64 << ID_SHIFT, vcpu: u16, kind in kinds()) {
            let record = Record { ticks, vcpu, kind };
            prop_assert_eq!(Record::decode(record.encode()), Some(record));
        }

        #[test]
        fn no_record_looks_like_a_free_slot(ticks: u64, vcpu: u16, kind in kinds()) {
            prop_assert_ne!(Record { ticks, vcpu, kind }.encode()[0], 0);
        }

        #[test]
        fn any_words_are_a_record_or_none(words: [u64; 2]) {
            if let Some(record) = Record::decode(words) {
                prop_assert!(record.ticks <= TICKS_MASK);
            }
        }

        #[test]
        fn ticks_are_extended(near: u64, distance in -(1_i64 << 47) + 1..1 << 47) {
            let at = near.wrapping_add_signed(distance);
            prop_assert_eq!(extend(at & TICKS_MASK, near), at);
        }
    }

    #[test]
    fn the_form_is_what_the_exit_path_writes() {
        let exit = Record { ticks: 0x1234, vcpu: 9, kind: Kind::Exit { row: 3, took: 0x50 } };
        // The row's offset in the ledger, 32 bytes a row, is above 32 bits of ticks.
        assert_eq!(exit.encode(), [0x0009_0000_0000_1234, (3 * 32) << 32 | 0x50]);
    }
}
