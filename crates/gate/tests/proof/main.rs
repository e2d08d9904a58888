//! The proof of the code page: the only effect of its bytes is that they send a listed vector to a listed CPU and then
//! leave the page. Checked from each offset, in each mode and for each target, by two decoders that share no code.

mod iced;
mod rules;
mod yaxpeax;

use rules::{Allowed, Refused, check, check_range};
use stile_gate::page::{self, SIZE, SLOT, SLOTS, Target, is_expressible, slot};

/// The vectors of slots.
const VECTORS: [u8; 1] = [page::NOTIFICATION];

fn page(slot_of: impl Fn(usize) -> [u8; SLOT]) -> [u8; SIZE] {
    let mut page = [0; SIZE];
    page.chunks_exact_mut(SLOT).enumerate().for_each(|(index, bytes)| bytes.copy_from_slice(&slot_of(index)));
    page
}

/// A page whose slot 3 is open, whatever its destination.
fn forced(apic_id: u8, vector: u8) -> [u8; SIZE] {
    page(|index| {
        let mut bytes = slot(None, vector);
        if index == 3 {
            bytes[page::ENTRY] = page::OPEN;
            bytes[page::DESTINATION] = apic_id;
        }
        bytes
    })
}

fn allowed(apic_ids: &[u8]) -> Allowed<'_> {
    Allowed { apic_ids, vectors: &VECTORS }
}

#[test]
fn every_expressible_target_is_safe_from_every_offset_and_no_other_is() {
    for vector in VECTORS {
        for apic_id in 0..=254 {
            let result = check_range(&forced(apic_id, vector), 3 * SLOT..4 * SLOT, allowed(&[apic_id]));
            assert_eq!(result.is_ok(), is_expressible(apic_id), "{apic_id:#x}, {vector:#x}: {result:?}");
            // A slot that is being closed or opened.
            if is_expressible(apic_id) {
                let mut closing = forced(apic_id, vector);
                closing[3 * SLOT + page::ENTRY] = page::CLOSED;
                check_range(&closing, 3 * SLOT..4 * SLOT, allowed(&[apic_id])).expect("closed");
            }
        }
    }
}

#[test]
fn whole_pages_are_safe() {
    let ids: Vec<u8> = (0..=254).filter(|&id| is_expressible(id)).collect();
    for start in [0, 64, 128] {
        let of = |index: usize| ids[(start + index) % ids.len()];
        let full = page(|index| slot(Target::new(of(index).into()), VECTORS[0]));
        check(&full, allowed(&(0..SLOTS).map(of).collect::<Vec<_>>())).expect("a full page");
    }
    check(&page(|_| slot(None, VECTORS[0])), allowed(&[])).expect("an empty page");
}

#[test]
fn an_open_slot_sends_to_its_target_and_returns() {
    let target = Target::new(7).unwrap();
    let bytes = page(|index| slot((index == 5).then_some(target), VECTORS[0]));
    let from = 5 * SLOT + page::ENTRY;
    for decode in [iced::decode as rules::Decode, yaxpeax::decode] {
        let (path, returns) = rules::straight(&bytes, from, decode);
        assert_eq!(path, [(stile_gate::APIC_LINEAR + 0x310, 0x07cc_cccc), (stile_gate::APIC_LINEAR + 0x300, 0xccf3_40f0)]);
        assert_eq!(returns, 5 * SLOT + page::RETURN);
    }
}

/// A change of the page that must be refused: bytes at an offset of slot 3.
#[track_caller]
fn refused(at: usize, bytes: &[u8]) -> Refused {
    let mut bad = forced(1, VECTORS[0]);
    bad[3 * SLOT + at..][..bytes.len()].copy_from_slice(bytes);
    check(&bad, allowed(&[1])).expect_err("a bad page is accepted")
}

#[test]
fn pages_with_a_bad_stub_are_refused() {
    // Stores to an address that is in a register, of a register's value, or relative to a segment's base.
    refused(48, &[0xc7, 0x00, 1, 1, 1, 1]);
    refused(48, &[0x89, 0x04, 0x25, 0x00, 0xf3, 0xcc, 0xcc]);
    refused(48, &[0x64, 0xc7, 0x04, 0x25, 0x00, 0xf3, 0xcc, 0xcc, 0xf3, 0x40, 0xf3, 0xcc]);
    refused(48, &[0x50]);
    refused(48, &[0xe8, 0xcc, 0xcc, 0xcc, 0xcc]);
    refused(48, &[0xaa]);
    // Another size, another register of the APIC, another page.
    refused(48, &[0x66, 0xc7, 0x04, 0x25, 0x00, 0xf3, 0xcc, 0xcc, 0xf3, 0x40]);
    refused(3, &[0x20]);
    refused(4, &[0xf2]);
    // Another destination, another vector, and bits of the ICR that mean something.
    refused(page::DESTINATION, &[2]);
    refused(page::VECTOR, &[0xf2]);
    refused(page::VECTOR + 1, &[0x44]);
    refused(page::VECTOR + 2, &[0xf7]);
    // Reserved bits that are zero.
    refused(page::VECTOR + 1, &[0, 0, 0]);
    refused(page::ENTRY + 7, &[0, 0, 0]);
    // Loads, loops, and instructions that reach the machine.
    refused(48, &[0x8b, 0x00]);
    refused(48, &[0xc3]);
    refused(48, &[0xeb, 0xfe]);
    refused(48, &[0x90, 0xeb, 0xfd]);
    refused(48, &[0x0f, 0x30]);
    refused(48, &[0x0f, 0x22, 0xd8]);
    refused(48, &[0x0f, 0x01, 0xf8]);
    refused(48, &[0xf4]);
    refused(48, &[0x0f, 0x05]);
}

#[test]
fn every_change_of_one_bit_is_refused_or_harmless() {
    // Harmless changes exist, such as another way to shift ECX: what counts is that none of them is one of the stores.
    let good = forced(1, VECTORS[0]);
    let mut accepted = 0;
    for bit in 0..8 * SLOT {
        let mut changed = good;
        changed[3 * SLOT + bit / 8] ^= 1 << (bit % 8);
        if check_range(&changed, 3 * SLOT..4 * SLOT, allowed(&[1])).is_ok() {
            accepted += 1;
            let in_store = (3..7).chain(7..8).chain(page::ENTRY + 3..page::ENTRY + 7).chain(page::DESTINATION..page::DESTINATION + 1);
            assert!(!in_store.into_iter().any(|at| at == bit / 8), "bit {bit} is of an address, destination or vector");
        }
    }
    assert!(accepted < 8 * SLOT, "nothing is refused");
}
