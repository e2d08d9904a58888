//! A guest that writes its code, remaps its pages and changes its modes as the input says: both schemes of the cache find what decoding
//! anew finds. It is the property of `tests/cache_against_decoding.rs`, without an end:
//!
//! ```text
//! cargo build --manifest-path crates/decode/fuzz/Cargo.toml     # compiles it
//! cd crates/decode && cargo +nightly fuzz run cache             # runs it (cargo install cargo-fuzz)
//! ```
#![no_main]

#[path = "../../tests/changes/mod.rs"]
mod changes;
#[path = "../../tests/guest/mod.rs"]
mod guest;

use changes::{INSTRUCTIONS, MODES, Op};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

const RIGHTS: [u64; 5] = [0x67, 0x63, 0x07, 0x66, 1 << 63 | 0x67];

fn op(input: &mut Unstructured<'_>) -> Result<Op> {
    let page = input.int_in_range(0..=3)?;
    // Often near the end of the page.
    let offset = if input.ratio(1, 2)? { 0xff0 + input.int_in_range(0..=15)? } else { input.int_in_range(0..=0xfff)? };
    Ok(match input.int_in_range(0..=7)? {
        0 => Op::Code { page, offset, instruction: input.choose_index(INSTRUCTIONS.len())? },
        1 => Op::Byte { page, offset: offset & 0xff0, more: input.int_in_range(0..=15)?, value: input.arbitrary()? },
        2 => Op::Map { table: input.int_in_range(0..=2)?, index: page, page: input.int_in_range(0..=63)?, rights: *input.choose(&RIGHTS)? },
        3 => Op::Table { which: input.int_in_range(0..=1)? },
        4 => Op::Large { on: input.arbitrary()? },
        _ => Op::Find { mode: input.choose_index(MODES)?, page, offset, user: input.arbitrary()? },
    })
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let mut ops = Vec::new();
    while !input.is_empty() && ops.len() < 200 {
        let Ok(op) = op(&mut input) else { break };
        ops.push(op);
    }
    changes::compare(ops);
});
