//! BARs that a guest places, also over each other.

use proptest::prelude::*;
use stile_pci::{Place, Space, Unmapped, place};

/// A space of pages of one byte: the BAR that is mapped at each.
struct Pages {
    sizes: Vec<u64>,
    pages: Vec<Option<usize>>,
}

impl Space for Pages {
    type Error = ();

    fn map(&mut self, bar: usize, address: u64) -> Result<(), ()> {
        for page in address..address + self.sizes[bar] {
            assert_eq!(self.pages[page as usize].replace(bar), None, "BAR {bar} is mapped over another one");
        }
        Ok(())
    }

    fn unmap(&mut self, bar: usize, address: u64) {
        for page in address..address + self.sizes[bar] {
            assert_eq!(self.pages[page as usize].take(), Some(bar), "BAR {bar} is not there");
        }
    }
}

/// BARs of these sizes, none of them decoded, and their space.
fn bars(sizes: &[u64]) -> (Vec<Place>, Pages) {
    let places = sizes.iter().map(|size| Place { size: *size, wanted: None, mapped: None }).collect();
    (places, Pages { sizes: sizes.to_vec(), pages: vec![None; 256] })
}

/// Places BARs, and returns the number of those that are not mapped.
fn apply(bars: &mut [Place], pages: &mut Pages) -> usize {
    let mut failures = 0;
    place(bars, pages, |_, _, reason| {
        assert_eq!(reason, Unmapped::Covered);
        failures += 1;
    });
    failures
}

#[test]
fn bars_change_places() {
    let (mut bars, mut pages) = bars(&[16, 16]);
    (bars[0].wanted, bars[1].wanted) = (Some(0), Some(16));
    assert_eq!(apply(&mut bars, &mut pages), 0);
    (bars[0].wanted, bars[1].wanted) = (Some(16), Some(0));
    assert_eq!(apply(&mut bars, &mut pages), 0);
    assert_eq!([bars[0].mapped, bars[1].mapped], [Some(16), Some(0)]);
}

#[test]
fn a_bar_appears_when_the_one_over_it_moves() {
    let (mut bars, mut pages) = bars(&[16, 32]);
    bars[0].wanted = Some(32);
    assert_eq!(apply(&mut bars, &mut pages), 0);
    bars[1].wanted = Some(32);
    assert_eq!(apply(&mut bars, &mut pages), 1, "the later one is covered");
    bars[0].wanted = Some(64);
    assert_eq!(apply(&mut bars, &mut pages), 0);
    assert_eq!([bars[0].mapped, bars[1].mapped], [Some(64), Some(32)]);
    bars[0].wanted = None;
    assert_eq!(apply(&mut bars, &mut pages), 0);
    assert_eq!(pages.pages.iter().flatten().count(), 32, "no page of it is left");
}

proptest! {
    /// After any moves, BARs are mapped where they are wanted, or nowhere if another one is mapped there.
    #[test]
    fn any_moves(moves in prop::collection::vec((0..4usize, prop::option::of(0..12u64)), 0..60)) {
        let (mut bars, mut pages) = bars(&[16, 16, 32, 64]);
        for (bar, address) in moves {
            bars[bar].wanted = address.map(|address| address * 16);
            let failures = apply(&mut bars, &mut pages);
            let overlap = |a: &Place, b: &Place, at: u64| b.mapped.is_some_and(|other| other < at + a.size && at < other + b.size);
            let mut unmapped = 0;
            for bar in &bars {
                match (bar.wanted, bar.mapped) {
                    (Some(wanted), None) => {
                        unmapped += 1;
                        prop_assert!(bars.iter().any(|other| overlap(bar, other, wanted)), "nothing is in the way of {:?}", bar);
                    }
                    (wanted, mapped) => prop_assert_eq!(wanted, mapped),
                }
            }
            prop_assert_eq!(failures, unmapped);
        }
    }
}
