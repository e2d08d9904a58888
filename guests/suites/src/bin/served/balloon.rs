//! A balloon: the client fills blocks of its RAM, and the server gives them back to Stile, by its registers alone.

use payload::harness::Test;
use payload::prelude::*;
use payload::random::{Random, mix};
use payload::uart::Reg32;

use crate::memory::{barrier, read32, read64, write32, write64};

/// The client's side.
pub const CLIENT: &[Test] = payload::tests![blocks_are_filled, given_blocks_come_back_clear, the_others_are_as_before];
/// The server's side.
pub const SERVER: &[Test] = payload::tests![
    the_client_is_ready,
    other_pages_are_refused,
    whole_blocks_are_given,
    a_page_is_taken_back,
    any_pages,
    the_client_agrees
];

const BASE: u64 = 0x0A01_0000;
const ONLINE: u64 = 0x28;
const BEGIN: u64 = 0x88;
const GIVE: u64 = 0x8C;
const TAKE: u64 = 0x90;
const ANSWER: u64 = 0x94;
const DONE: u32 = 0;
const AGAIN: u32 = 1;
const REFUSED: u32 = 2;

const BLOCK: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// Offsets in the client's RAM: of blocks that are given and touched, given but for a page, given and taken back; of blocks for
/// [`any_pages`]; of the word by which both sides wait for each other.
const GIVEN: u64 = 32 << 20;
const PARTLY: u64 = GIVEN + BLOCK;
const TAKEN: u64 = PARTLY + BLOCK;
const ANY: u64 = TAKEN + BLOCK;
const ANY_BLOCKS: u64 = 3;
const WORD: u64 = ANY + ANY_BLOCKS * BLOCK;
/// The word's values.
const READY: u32 = 1;
const CHECK: u32 = 2;
const AGREED: u32 = 3;

fn own(offset: u64) -> u64 {
    machine::ram().start + offset
}

fn fill(start: u64) {
    (0..BLOCK / 8).for_each(|word| write64(start + 8 * word, mix(start + word)));
}

fn wait_for(address: u64, value: u32) -> bool {
    // The other machine may be slow to start.
    (0..20).any(|_| wait::until(|| read32(address) == value))
}

fn blocks_are_filled() -> Outcome {
    [GIVEN, PARTLY, TAKEN].into_iter().for_each(|offset| fill(own(offset)));
    write32(own(WORD), READY);
    barrier();
    check!(wait_for(own(WORD), CHECK), "the server does not give them");
    Ok(())
}

fn given_blocks_come_back_clear() -> Outcome {
    for start in [own(GIVEN), own(TAKEN)] {
        let used = (0..BLOCK / 8).find(|word| read64(start + 8 * word) != 0);
        check!(used.is_none(), "the block at {start:#x} is not clear");
        fill(start);
        let lost = (0..BLOCK / 8).find(|word| read64(start + 8 * word) != mix(start + word));
        check!(lost.is_none(), "the block at {start:#x} does not keep what is written");
    }
    Ok(())
}

fn the_others_are_as_before() -> Outcome {
    let start = own(PARTLY);
    let lost = (0..BLOCK / 8).find(|word| read64(start + 8 * word) != mix(start + word));
    check!(lost.is_none(), "the block at {start:#x} was not given as a whole");
    barrier();
    write32(own(WORD), AGREED);
    Ok(())
}

fn register(offset: u64) -> Reg32 {
    Reg32(BASE + offset)
}

fn pair(offset: u64) -> u64 {
    u64::from(register(offset).read()) | u64::from(register(offset + 4).read()) << 32
}

/// Start of the window, and of the client's RAM.
fn places() -> (u64, u64) {
    (pair(0x10), pair(0x20))
}

/// A call for the page at an offset in the client's RAM.
fn call(kind: u64, offset: u64) -> u32 {
    let page = ((places().1 + offset) / PAGE) as u32;
    loop {
        register(kind).write(page);
        let answer = register(ANSWER).read();
        if answer != AGAIN {
            return answer;
        }
    }
}

fn give(block: u64, pages: u64) -> Outcome {
    for page in 0..pages {
        check_eq!(call(GIVE, block + page * PAGE), DONE, "page {page} of {block:#x}");
    }
    Ok(())
}

fn the_client_is_ready() -> Outcome {
    check_eq!(register(8).read(), 5, "a balloon");
    register(ONLINE).write(1);
    let (window, _) = places();
    check!(wait_for(window + WORD, READY), "the client is not ready");
    barrier();
    Ok(())
}

fn other_pages_are_refused() -> Outcome {
    let (_, ram) = places();
    for page in [0, ram / PAGE - 1, (ram + pair(0x18)) / PAGE, u64::from(u32::MAX)] {
        for kind in [GIVE, TAKE] {
            register(kind).write(page as u32);
            check_eq!(register(ANSWER).read(), REFUSED, "page {page:#x}");
        }
    }
    Ok(())
}

fn whole_blocks_are_given() -> Outcome {
    // Pages of an earlier life count no more.
    give(PARTLY, 511)?;
    register(BEGIN).write(1);
    check_eq!(call(GIVE, PARTLY + 511 * PAGE), DONE, "the last page");
    let first = read64(places().0 + PARTLY);
    check!(first != 0, "the block was given");
    [GIVEN, TAKEN].into_iter().try_for_each(|block| give(block, 512))?;
    // Twice.
    give(GIVEN, 512)
}

fn a_page_is_taken_back() -> Outcome {
    check_eq!(call(TAKE, TAKEN + 7 * PAGE), DONE, "a page");
    let start = places().0 + TAKEN;
    let used = (0..BLOCK / 8).find(|word| read64(start + 8 * word) != 0);
    check!(used.is_none(), "the block is not clear");
    // The rest is given: with this page, the block is.
    check_eq!(call(GIVE, TAKEN + 7 * PAGE), DONE, "the page");
    Ok(())
}

/// Any pages of some blocks, which are touched meanwhile: one that was not given as a whole keeps its content.
fn any_pages() -> Outcome {
    let mut random = Random::new(machine::number("seed", 5));
    let (window, _) = places();
    for round in 1..=8 {
        let block = ANY + BLOCK * random.below(ANY_BLOCKS);
        let left = random.below(512);
        register(BEGIN).write(1);
        write64(window + block, round);
        for page in (0..512).filter(|page| round % 2 == 0 || *page != left) {
            check_eq!(call(GIVE, block + page * PAGE), DONE, "page {page}");
        }
        let expected = if round % 2 == 0 { 0 } else { round };
        check_eq!(read64(window + block), expected, "round {round}");
        for _ in 0..8 {
            // Pages that were not given are refused.
            let _ = call(TAKE, block + random.below(512) * PAGE);
        }
        check_eq!(read64(window + block), expected, "round {round}, taken back");
    }
    Ok(())
}

fn the_client_agrees() -> Outcome {
    let (window, _) = places();
    barrier();
    write32(window + WORD, CHECK);
    check!(wait_for(window + WORD, AGREED), "the client does not agree");
    Ok(())
}
