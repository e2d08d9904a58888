//! Tests of the layout of a VM's RAM.

use std::ops::Range;

use proptest::prelude::*;
use stile_board::map::{RAM_BASE, RAM_GRANULE};

use super::{ElfSegment, elf, image};
use crate::image::{Kernel, UNPACKING, layout::place};

const MIB: u64 = 1 << 20;

fn kernel(len: u64, ram: u64) -> Kernel<'static> {
    Kernel::recognise(&image(0, len, 64), ram, &UNPACKING).expect("a kernel").into_owned()
}

#[test]
fn linux_with_plenty_of_ram() {
    let layout = place(&kernel(32 * MIB, 1024 * MIB), 1024 * MIB, 5000, Some(20 * MIB + 1)).expect("room");
    assert_eq!(layout.dtb, RAM_BASE + 510 * MIB..RAM_BASE + 510 * MIB + 8192);
    assert_eq!(layout.initrd, Some(RAM_BASE + 490 * MIB - 0x1_0000..RAM_BASE + 510 * MIB - 0x1_0000 + 1));
}

#[test]
fn linux_with_more_than_fits_near_it() {
    let layout = place(&kernel(32 * MIB, 1024 * MIB), 1024 * MIB, 5000, Some(500 * MIB)).expect("room");
    assert_eq!(layout.dtb.start, RAM_BASE + 1022 * MIB);
    assert_eq!(layout.initrd, Some(RAM_BASE + 522 * MIB..RAM_BASE + 1022 * MIB));
}

#[test]
fn flat_binary_gets_the_lower_half() {
    let ram = 256 * MIB;
    let flat = Kernel::recognise(&[0; 100], ram, &UNPACKING).expect("a kernel");
    let layout = place(&flat, ram, 5000, Some(100)).expect("room");
    assert!(layout.dtb.start >= RAM_BASE + ram / 2);
    assert!(layout.initrd.expect("one").start >= RAM_BASE + ram / 2);
    // Unless it doesn't fit there.
    let layout = place(&flat, ram, 5000, Some(200 * MIB)).expect("room");
    assert!(layout.initrd.expect("one").start < RAM_BASE + ram / 2);
}

#[test]
fn least_ram() {
    let layout = place(&kernel(MIB, RAM_GRANULE), RAM_GRANULE, 5000, Some(4097)).expect("room");
    assert_eq!(layout.dtb, RAM_BASE + 2 * MIB - 8192..RAM_BASE + 2 * MIB);
    assert_eq!(layout.initrd, Some(RAM_BASE + 2 * MIB - 16384..RAM_BASE + 2 * MIB - 16384 + 4097));
}

#[test]
fn device_tree_under_a_kernel_at_the_top() {
    let top = RAM_BASE + 64 * MIB - 4096;
    let segment = ElfSegment { vaddr: top, paddr: top, data: vec![1; 8], mem_len: 4096 };
    let kernel = Kernel::recognise(&elf(top, &[segment]), 64 * MIB, &UNPACKING).expect("a kernel").into_owned();
    let layout = place(&kernel, 64 * MIB, 5000, None).expect("room");
    assert_eq!(layout.dtb.start, RAM_BASE + 60 * MIB);
}

#[test]
fn too_little_ram() {
    let ram = 32 * MIB;
    let kernel = kernel(20 * MIB, ram);
    let all = place(&kernel, ram, 5000, Some(12 * MIB)).expect_err("no room");
    insta::assert_snapshot!("no_room_for_all", all);
    let ram_full = Kernel::recognise(&image(0, ram, 64), ram, &UNPACKING).expect("a kernel").into_owned();
    insta::assert_snapshot!("no_room_for_the_dtb", place(&ram_full, ram, 5000, None).expect_err("no room"));
}

fn apart(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.end <= b.start || b.end <= a.start
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn nothing_overlaps(
        granules in 1..400u64,
        parts in prop::collection::vec((0..400u64, 1..30u64), 1..6),
        dtb in 1..200_000u64,
        initrd in prop::option::of(1..600 * MIB),
        flat: bool,
    ) {
        let ram = granules * RAM_GRANULE;
        let segments: Vec<ElfSegment> = parts
            .iter()
            .map(|(at, pages)| {
                let address = RAM_BASE + at * RAM_GRANULE;
                ElfSegment { vaddr: address, paddr: address, data: vec![1; 8], mem_len: pages * 4096 }
            })
            .collect();
        let file = if flat { vec![0; 100] } else { elf(segments[0].paddr, &segments) };
        let Ok(kernel) = Kernel::recognise(&file, ram, &UNPACKING) else { return Ok(()) };
        let ram_range = RAM_BASE..RAM_BASE + ram;
        match place(&kernel, ram, dtb, initrd) {
            Ok(layout) => {
                let mut taken: Vec<_> = kernel.segments.iter().map(|segment| segment.memory()).collect();
                prop_assert!(layout.dtb.end - layout.dtb.start >= dtb);
                prop_assert_eq!(layout.dtb.start / RAM_GRANULE, (layout.dtb.end - 1) / RAM_GRANULE);
                prop_assert_eq!(layout.dtb.start % 8, 0);
                prop_assert_eq!(layout.initrd.as_ref().map(|range| range.end - range.start), initrd);
                for range in [Some(layout.dtb.clone()), layout.initrd.clone()].into_iter().flatten() {
                    prop_assert!(range.start >= ram_range.start && range.end <= ram_range.end);
                    prop_assert!(taken.iter().all(|other| apart(other, &range)));
                    taken.push(range);
                }
            }
            Err(error) => {
                // The suggested amount must be sufficient, and an error must mean that RAM is short.
                prop_assert!(initrd.unwrap_or(0) + dtb + 5 * MIB + kernel.segments.iter().map(|s| s.mem_len + RAM_GRANULE).sum::<u64>() > ram / (kernel.segments.len() as u64 + 1), "{}", error);
            }
        }
    }
}
