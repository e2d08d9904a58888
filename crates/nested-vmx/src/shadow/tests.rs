use std::collections::HashMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Model {
    words: HashMap<(u64, usize), u64>,
    invalidated: Vec<u64>,
}

impl Frames for Model {
    fn read(&self, table: u64, index: usize) -> u64 {
        self.words.get(&(table, index)).copied().unwrap_or(0)
    }

    fn write(&mut self, table: u64, index: usize, entry: u64) {
        self.words.insert((table, index), entry);
    }

    fn zero(&mut self, frame: u64) {
        self.words.retain(|&(table, _), _| table != frame);
    }

    fn invalidate(&mut self, root: u64) {
        self.invalidated.push(root);
    }
}

impl Model {
    fn translate(&self, root: u64, guest: u64) -> Option<(u64, u8)> {
        let mut table = root;
        for shift in [39, 30, 21, 12] {
            let entry = self.read(table, (guest >> shift) as usize % ENTRIES);
            if entry & 7 == 0 {
                return None;
            }
            if shift == 12 || entry & LARGE != 0 {
                return Some(((entry & ADDRESS) + (guest & ((1 << shift) - 1)), entry as u8 & 7));
            }
            table = entry & ADDRESS;
        }
        None
    }
}

const MEMORY: core::ops::Range<u64> = 0x10_0000..0x10_0000 + 16 * FRAME;

fn page(guest: u64, machine: u64) -> Page {
    Page { guest, machine, shift: 12, rights: Rights::ALL }
}

#[test]
fn a_page_is_found_until_it_is_invalidated() {
    let mut frames = Model::default();
    let mut shadows = Shadows::new(MEMORY);
    let (one, other) = (shadows.root(0x1000, &mut frames), shadows.root(0x2000, &mut frames));
    assert_ne!(one, other);
    assert_eq!(shadows.root(0x1000, &mut frames), one);
    shadows.map(one, page(0x1_2345, 0x9000), &mut frames);
    assert_eq!(frames.translate(one, 0x1_2345), Some((0x9345, 7)));
    assert_eq!(frames.translate(other, 0x1_2345), None);
    shadows.invalidate(Some(0x2000), &mut frames);
    assert!(frames.invalidated.is_empty() && frames.translate(one, 0x1_2345).is_some());
    shadows.invalidate(Some(0x1000), &mut frames);
    assert_eq!((frames.invalidated.as_slice(), frames.translate(one, 0x1_2345)), ([one].as_slice(), None));
}

#[test]
fn a_shadow_is_emptied_for_another_root() {
    let mut frames = Model::default();
    let mut shadows = Shadows::new(MEMORY);
    let first = shadows.root(0x1000, &mut frames);
    shadows.map(first, page(0, 0x9000), &mut frames);
    for of in 2..=SHADOWS as u64 {
        shadows.root(of << 12, &mut frames);
    }
    let assignments = shadows.assignments();
    assert_eq!(shadows.root(0x9_9000, &mut frames), first);
    assert_eq!(frames.translate(first, 0), None);
    assert_ne!(shadows.assignments(), assignments);
}

#[test]
fn roots_stay_while_no_shadow_is_assigned() {
    let mut frames = Model::default();
    let mut shadows = Shadows::new(MEMORY);
    let roots = [0x1000, 0x2000].map(|of| shadows.root(of, &mut frames));
    let assignments = shadows.assignments();
    shadows.map(roots[0], page(0, 0x9000), &mut frames);
    shadows.invalidate(None, &mut frames);
    assert_eq!([0x1000, 0x2000].map(|of| shadows.root(of, &mut frames)), roots);
    assert_eq!(shadows.assignments(), assignments);
    shadows.reset(&mut frames);
    assert_ne!(shadows.assignments(), assignments);
}

#[test]
fn a_large_page_gives_way_to_a_small_one() {
    let mut frames = Model::default();
    let mut shadows = Shadows::new(MEMORY);
    let root = shadows.root(0x1000, &mut frames);
    shadows.map(root, Page { shift: 21, ..page(0x20_0000, 0x40_0000) }, &mut frames);
    assert_eq!(frames.translate(root, 0x20_1234), Some((0x40_1234, 7)));
    shadows.map(root, page(0x20_1000, 0x5000), &mut frames);
    assert_eq!(frames.translate(root, 0x20_1234), Some((0x5234, 7)));
    assert_eq!(frames.translate(root, 0x20_2000), None);
    assert_eq!(frames.invalidated, [root]);
}

proptest! {
    /// For any mappings, and however few frames there are: the page mapped last is there, and every other translation is one that was
    /// mapped before.
    #[test]
    fn translations_are_those_that_were_mapped(pages in prop::collection::vec((0_u64..1 << 36, 0_u64..1 << 20, any::<bool>()), 1..60)) {
        let mut frames = Model::default();
        let mut shadows = Shadows::new(MEMORY);
        let root = shadows.root(0x1000, &mut frames);
        let mut mapped: Vec<Page> = Vec::new();
        for (guest, machine, is_large) in pages {
            let shift = if is_large { 21 } else { 12 };
            let page = Page { guest, machine: machine << shift, shift, rights: Rights::ALL };
            shadows.map(root, page, &mut frames);
            let at = |page: &Page, guest: u64| (guest >> page.shift == page.guest >> page.shift).then(|| page.machine + (guest & ((1 << page.shift) - 1)));
            prop_assert_eq!(frames.translate(root, guest).map(|found| found.0), at(&page, guest));
            mapped.push(page);
            for earlier in &mapped {
                if let Some((found, _)) = frames.translate(root, earlier.guest) {
                    prop_assert!(mapped.iter().any(|page| at(page, earlier.guest) == Some(found)));
                }
            }
        }
    }
}
