//! The fast path compared with the general emulation.

mod emulated;

use emulated::Machine;
use proptest::prelude::*;
use stile_x86_decode::{CodeSize, FastAccess, decode, execute};

const DEVICE: u64 = 0xfee0_0000;

/// Bytes of MOV between registers, immediates and memory, with prefixes that change what they are.
fn instruction() -> impl Strategy<Value = Vec<u8>> {
    let prefix = prop_oneof![6 => Just(vec![]), 1 => Just(vec![0x66]), 1 => Just(vec![0x67]), 1 => Just(vec![0x64]), 3 => (0x40..0x50_u8).prop_map(|rex| vec![rex])];
    let opcode = prop::sample::select(&[0x8b_u8, 0x89, 0xc7, 0x8a, 0x88, 0x03, 0x23][..]);
    let form = prop_oneof![
        (0..8_u8, 0..8_u8).prop_map(|(reg, rm)| vec![0x80 | reg << 3 | rm]),
        (0..8_u8).prop_map(|reg| vec![0x04 | reg << 3, 0x25])
    ];
    let displacement = prop::sample::select(&[0_u32, 0x20, 0xb0, 0xfd, 0xfee0_0020, 0xffc][..]);
    (prefix, opcode, form, displacement, any::<u32>()).prop_map(|(prefix, opcode, form, displacement, immediate)| {
        let form = if opcode == 0xc7 {
            form.iter().enumerate().map(|(i, byte)| if i == 0 { byte & !0x38 } else { *byte }).collect()
        } else {
            form
        };
        let mut bytes = [prefix, vec![opcode], form].concat();
        // The SIB of mod 2, rm 4: no index, RSP as the base.
        if bytes.last().is_some_and(|last| last >> 6 == 2 && last & 7 == 4) {
            bytes.push(0x24);
        }
        bytes.extend(displacement.to_le_bytes());
        bytes.extend(immediate.to_le_bytes());
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_fast_path_has_the_instructions_effect(bytes in instruction(), general in registers(), without in any::<u16>()) {
        compare(&bytes, general, without)?;
    }
}

fn registers() -> impl Strategy<Value = [u64; 16]> {
    prop::array::uniform16(0..0x1000_u64).prop_map(|offsets| offsets.map(|offset| DEVICE + offset / 4 * 4))
}

/// Executes the instruction by both paths. Returns whether it is eligible for the fast path.
fn compare(bytes: &[u8], general: [u64; 16], without: u16) -> Result<bool, TestCaseError> {
    let Ok(decoded) = decode(bytes, CodeSize::Bits64) else { return Ok(false) };
    let mut machine = Machine::new(DEVICE, &[0x5a; 0x2000]);
    machine.general = general;
    let mut by_fast_path = machine.clone();
    // At most one page offset is eligible.
    let mut places = (0..0x1000).step_by(4).filter_map(|at| Some((at, decoded.fast_path(&general, without, DEVICE + at)?)));
    let Some((at, fast)) = places.next() else { return Ok(false) };
    prop_assert_eq!(places.next(), None);
    match fast {
        FastAccess::Load(register) => {
            prop_assert_eq!(without >> register & 1, 0);
            by_fast_path.general[register] = 0x5a5a_5a5a;
        }
        FastAccess::Store(value) => by_fast_path.memory[at as usize..][..4].copy_from_slice(&value.to_le_bytes()),
    }
    prop_assert!(execute(&decoded, &mut machine, DEVICE + at).is_ok());
    prop_assert_eq!((machine.device_accesses, machine.linear_accesses), (1, 0));
    prop_assert_eq!(machine.general, by_fast_path.general);
    prop_assert!(machine.memory == by_fast_path.memory);
    prop_assert_eq!(machine.flags, by_fast_path.flags);
    Ok(true)
}

/// Guards the generator: a share of the instructions must be eligible.
#[test]
fn generator_yields_eligible_instructions() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut one = || {
        let (bytes, general) = (instruction(), registers()).new_tree(&mut runner).unwrap().current();
        compare(&bytes, general, 0).unwrap()
    };
    let fast = (0..1000).filter(|_| one()).count();
    assert!((150..900).contains(&fast), "{fast} of 1000");
}

/// Linux's accesses to its local APIC.
#[test]
fn driver_accesses_are_eligible() {
    let forms: [(&[u8], u16); 4] = [
        (&[0x8b, 0x47, 0x20], 1 << 7 | 1),
        (&[0x89, 0xb7, 0x00, 0xc0, 0x5f, 0xff], 1 << 7 | 1 << 6),
        (&[0xc7, 0x04, 0x25, 0x20, 0x00, 0xe0, 0xfe, 1, 0, 0, 0], 0),
        (&[0x8b, 0x04, 0x25, 0x20, 0x00, 0xe0, 0xfe], 1),
    ];
    for (bytes, registers) in forms {
        let decoded = decode(bytes, CodeSize::Bits64).unwrap();
        let mut general = [0; 16];
        general[7] = if bytes[0] == 0x89 { 0xa0_4020 } else { DEVICE };
        assert!(decoded.fast_path(&general, !registers, DEVICE + 0x20).is_some(), "{bytes:x?}");
        assert!(registers == 0 || decoded.fast_path(&general, registers, DEVICE + 0x20).is_none(), "{bytes:x?}");
        assert!(decoded.fast_path(&general, 0, DEVICE + 0x30).is_none(), "{bytes:x?}");
    }
}
