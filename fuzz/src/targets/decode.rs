//! Instructions of x86 guests.

// Shared with the tests of crate `x86-decode`.
#[path = "../../../crates/x86-decode/tests/changes/mod.rs"]
mod changes;
#[path = "../../../crates/x86-decode/tests/emulated/mod.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod emulated;
#[path = "../../../crates/x86-decode/tests/guest/mod.rs"]
mod guest;
#[path = "../../../crates/x86-decode/tests/wild/mod.rs"]
mod wild;

use changes::{INSTRUCTIONS as KNOWN, MODES, Op};
use emulated::Machine;
use stile_x86_decode::{CodeSize, MAX_LENGTH, Outcome, Segment, decode, execute};
use wild::Wild;

use crate::input::Input;
use crate::marks::reach;
use crate::target::{Target, none};

/// Any bytes, decoded and executed on any state: the emulator returns, within a bound of accesses, and changes only the permitted state.
pub const INSTRUCTIONS: Target = Target {
    name: "decode",
    run: instructions,
    seeds: loads_of_ss,
    mutations: 10_000,
    marks: &["undecoded", "complete", "partial", "jump", "shadowed", "flags", "fault", "vector"],
};

/// A guest that writes its code, remaps its pages and changes its modes: both schemes of the cache agree with decoding anew.
pub const CACHE: Target = Target { name: "decode-cache", run: cache, seeds: none, mutations: 400, marks: &["find", "map"] };

/// POP SS in real mode: the input has zeros for the control registers.
fn loads_of_ss() -> Vec<Vec<u8>> {
    const ZERO: u8 = 128;
    let code = [0x17, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90];
    // Tables, then a segment's base, limit and access rights.
    let state = [ZERO, ZERO, ZERO, ZERO, ZERO, 0, 0, ZERO, 0, 0, ZERO, 0xff, 0xff, 0xff, 0xff, 0x93, 0, 0, 0, 1];
    vec![[&[2][..], &code, &[ZERO, 0, 1], &state].concat()]
}

fn instructions(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let size = input.pick(&[CodeSize::Bits64, CodeSize::Bits32, CodeSize::Bits16]);
    let code = input.take(MAX_LENGTH + 1);
    let Ok(decoded) = decode(code, size) else { return reach("undecoded") };
    assert!((1..=MAX_LENGTH).contains(&usize::from(decoded.len())));
    let mut machine = Machine::new(0, &[]);
    machine.flags = input.value();
    machine.other.privilege = input.byte() & 3;
    if input.bit() {
        let other = &mut machine.other;
        (other.cr0, other.cr4, other.efer, other.xcr0) = (input.value(), input.value(), input.value(), input.value());
        other.tables = [(input.value(), input.half()), (input.value(), input.half())];
        let (base, limit, rights) = (input.value(), input.word(), input.word());
        machine.segments = [Segment::from_vmcs(base, limit, rights, input.bit()); 6];
    }
    let exit = input.value();
    for register in &mut machine.general {
        *register = input.value();
    }
    let vectors = machine.other.vectors;
    let mut wild = Wild(machine, 0);
    let outcome = execute(&decoded, &mut wild, exit);
    assert!(wild.1 <= 2 * 64, "{} accesses", wild.1);
    if wild.0.other.vectors != vectors {
        reach("vector");
    }
    reach(match outcome {
        Ok(Outcome::Complete) => "complete",
        Ok(Outcome::Partial) => "partial",
        Ok(Outcome::Changed) => "changed",
        Ok(Outcome::Jump(_)) => "jump",
        Ok(Outcome::Shadowed) => "shadowed",
        Ok(Outcome::Flags(_)) => "flags",
        Err(_) => "fault",
    });
}

const RIGHTS: [u64; 5] = [0x67, 0x63, 0x07, 0x66, 1 << 63 | 0x67];

fn cache(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut ops = Vec::new();
    while !input.is_empty() && ops.len() < 200 {
        ops.push(op(&mut input));
    }
    changes::compare(ops);
}

fn op(input: &mut Input<'_>) -> Op {
    let kind = input.byte();
    let page = u64::from(kind >> 3 & 3);
    // Often near the end of the page.
    let offset = if kind >> 5 & 1 != 0 { 0xff0 + u64::from(input.byte() & 0xf) } else { u64::from(input.half() & 0xfff) };
    match kind & 7 {
        0 => Op::Code { page, offset, instruction: input.below(KNOWN.len()) },
        1 => Op::Byte { page, offset: offset & 0xff0, more: (kind >> 4).into(), value: input.byte() },
        2 => {
            reach("map");
            Op::Map { table: input.below(3), index: page, page: (input.byte() & 63).into(), rights: input.pick(&RIGHTS) }
        }
        3 => Op::Table { which: input.below(2) },
        4 => Op::Large { on: input.bit() },
        5 => Op::Root { which: input.below(2), rights: input.pick(&RIGHTS) },
        _ => {
            reach("find");
            Op::Find { mode: input.below(MODES), page, offset, user: input.bit() }
        }
    }
}
