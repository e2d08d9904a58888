//! Random bytes on random state: emulation terminates, does not panic, and changes only what it may.

mod emulated;
mod wild;

use emulated::Machine;
use proptest::prelude::*;
use stile_x86_decode::{CodeSize, Segment, decode, execute};
use wild::Wild;

fn size() -> impl Strategy<Value = CodeSize> {
    prop_oneof![Just(CodeSize::Bits16), Just(CodeSize::Bits32), Just(CodeSize::Bits64)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn random_bytes_on_random_state(
        bytes in prop::collection::vec(any::<u8>(), 0..20),
        opcode in prop::sample::select(
            &[
                0_u8, 0x8b, 0x89, 0x0f, 0x0f, 0x0f, 0xab, 0xa5, 0xff, 0x8f, 0xc7, 0x81, 0xf7, 0xd3, 0x8e, 0xc4, 0xc5, 0xc3, 0xc8, 0xa6, 0x60, 0x61, 0x9c,
                0x9d, 0xd7,
            ][..]
        ),
        general in prop::array::uniform16(any::<u64>()),
        size in size(),
        (exit, flags, base, limit, rights) in (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()),
    ) {
        let mut bytes = bytes;
        if let (Some(first), true) = (bytes.first_mut(), opcode != 0) {
            *first = opcode;
        }
        let Ok(decoded) = decode(&bytes, size) else { return Ok(()) };
        prop_assert!((1..=15).contains(&decoded.len()));
        let mut machine = Machine::new(0, &[]);
        (machine.general, machine.flags) = (general, flags);
        // Derived from the same random bits as the other state.
        machine.other.privilege = (base & 3) as u8;
        (machine.other.cr0, machine.other.cr4, machine.other.efer) = (limit.into(), rights.into(), base >> 8);
        machine.other.tables = [(exit, rights as u16); 2];
        machine.segments = [Segment::from_vmcs(base, limit, rights, flags & 1 != 0); 6];
        let mut wild = Wild(machine, 0);
        let _ = execute(&decoded, &mut wild, exit);
        prop_assert!(wild.1 <= 2 * 64, "{} accesses", wild.1);
    }
}
