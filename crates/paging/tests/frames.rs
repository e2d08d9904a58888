//! The frame allocator against a plain model: an owner for each frame.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::{Error, Frames, MAX_PIECES, Piece, Region};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn region(base: u64, size: u64) -> Region {
    Region { base, size }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Owner {
    Nobody,
    Free,
    Frame,
    Block,
}

/// An owner for each frame below 64 MiB.
struct Plain(Vec<Owner>);

impl Plain {
    const END: u64 = 64 * MIB;

    fn new(ram: &[Region], reserved: &[Region]) -> Self {
        let within = |list: &[Region], byte: u64| list.iter().any(|r| r.base <= byte && byte - r.base < r.size);
        let owner = |frame: u64| {
            let start = frame * PAGE_SIZE;
            // Region edges in these tests are multiples of 512.
            let mut bytes = (start..start + PAGE_SIZE).step_by(512);
            let is_free = bytes.all(|byte| within(ram, byte) && !within(reserved, byte));
            if is_free { Owner::Free } else { Owner::Nobody }
        };
        Self((0..Self::END / PAGE_SIZE).map(owner).collect())
    }

    fn frames(&mut self, pa: u64, size: u64) -> &mut [Owner] {
        assert!(pa.is_multiple_of(PAGE_SIZE) && size.is_multiple_of(PAGE_SIZE));
        &mut self.0[(pa / PAGE_SIZE) as usize..((pa + size) / PAGE_SIZE) as usize]
    }

    /// Transfers frames, all of which must belong to `from`.
    fn pass(&mut self, pa: u64, size: u64, from: Owner, to: Owner) {
        let frames = self.frames(pa, size);
        assert!(frames.iter().all(|&owner| owner == from), "{pa:#x} is not {from:?}");
        frames.fill(to);
    }

    fn is_all(&self, pa: u64, size: u64, wanted: Owner) -> bool {
        let frames = (pa / PAGE_SIZE) as usize..((pa + size) / PAGE_SIZE) as usize;
        self.0.get(frames).is_some_and(|frames| frames.iter().all(|&owner| owner == wanted))
    }

    fn count(&self, wanted: Owner) -> u64 {
        self.0.iter().filter(|&&owner| owner == wanted).count() as u64
    }

    /// The sizes of all contiguous free ranges.
    fn runs(&self) -> Vec<u64> {
        let runs = self.0.split(|&owner| owner != Owner::Free);
        runs.filter(|run| !run.is_empty()).map(|run| run.len() as u64 * PAGE_SIZE).collect()
    }

    /// Whether there is a contiguous free place congruent to `address` modulo `modulus`.
    fn has_place(&self, address: u64, size: u64, modulus: u64) -> bool {
        let first = address % modulus;
        (first..Self::END).step_by(modulus as usize).any(|pa| self.is_all(pa, size, Owner::Free))
    }
}

#[derive(Debug, Clone)]
enum Step {
    AllocFrame,
    FreeFrame(usize),
    AllocBlock {
        size: u64,
        align: u64,
    },
    AllocMemory {
        gpa: u64,
        size: u64,
    },
    FreeBlock(usize),
    /// A part of a block: first frame, number of frames.
    FreePart(usize, u64, u64),
    /// Arbitrary numbers.
    FreeAnything {
        pa: u64,
        size: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        (1..40u64).prop_map(|frames| frames * PAGE_SIZE),
        (1..6u64).prop_map(|n| n * 2 * MIB),
        (1..3000u64).prop_map(|frames| frames * PAGE_SIZE),
    ];
    let gpa = prop_oneof![Just(GIB), (0..2000u64).prop_map(|frame| GIB + frame * PAGE_SIZE)];
    let pa = (0..Plain::END / 2048).prop_map(|n| n * 2048);
    prop_oneof![
        6 => Just(Step::AllocFrame),
        5 => any::<usize>().prop_map(Step::FreeFrame),
        3 => (size.clone(), 12..23u32)
            .prop_map(|(size, shift)| Step::AllocBlock { size, align: 1 << shift }),
        3 => (gpa, size.clone()).prop_map(|(gpa, size)| Step::AllocMemory { gpa, size }),
        4 => any::<usize>().prop_map(Step::FreeBlock),
        1 => (any::<usize>(), 0..9u64, 1..9u64).prop_map(|(n, at, len)| Step::FreePart(n, at, len)),
        2 => (pa, size).prop_map(|(pa, size)| Step::FreeAnything { pa, size }),
        1 => any::<(u64, u64)>().prop_map(|(pa, size)| Step::FreeAnything { pa, size }),
    ]
}

fn regions(most: u64) -> impl Strategy<Value = Vec<Region>> {
    let region = (0..Plain::END / 512, 0..most / 512).prop_map(|(base, size)| {
        let base = base * 512;
        region(base, (size * 512).min(Plain::END - base))
    });
    proptest::collection::vec(region, 0..4)
}

/// Current allocations.
#[derive(Default)]
struct Held {
    frames: Vec<u64>,
    blocks: Vec<(u64, u64)>,
}

fn take<T>(list: &mut Vec<T>, choice: usize) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(choice % list.len()))
}

fn check_memory(plain: &mut Plain, held: &mut Held, gpa: u64, size: u64, pieces: &[Piece]) {
    // No better-aligned contiguous place exists than the pieces got.
    let congruent = |modulus: u64| pieces.iter().all(|piece| piece.gpa % modulus == piece.pa % modulus);
    let has_whole_block = gpa.next_multiple_of(2 * MIB) + 2 * MIB <= gpa + size;
    if has_whole_block && !congruent(2 * MIB) && held.frames.is_empty() {
        assert!(!plain.has_place(gpa, size, 2 * MIB));
    }
    if pieces.len() > 1 && held.frames.is_empty() {
        let modulus = if congruent(2 * MIB) { 2 * MIB } else { PAGE_SIZE };
        assert!(!plain.has_place(gpa, size, modulus), "split into pieces although a contiguous place exists");
    }
    let mut next = gpa;
    for piece in pieces {
        assert_eq!(piece.gpa, next);
        plain.pass(piece.pa, piece.size, Owner::Free, Owner::Block);
        held.blocks.push((piece.pa, piece.size));
        next += piece.size;
    }
    assert_eq!(next, gpa + size);
}

fn run(frames: &mut Frames<256>, plain: &mut Plain, held: &mut Held, step: Step) {
    match step {
        Step::AllocFrame => match frames.alloc_frame() {
            Ok(frame) => {
                plain.pass(frame, PAGE_SIZE, Owner::Free, Owner::Frame);
                held.frames.push(frame);
            }
            Err(error) => {
                assert_eq!((error, plain.count(Owner::Free)), (Error::OutOfMemory, 0));
            }
        },
        Step::FreeFrame(choice) => {
            if let Some(frame) = take(&mut held.frames, choice) {
                assert_eq!(frames.free_block(frame, PAGE_SIZE), Err(Error::NotAllocated));
                assert_eq!(frames.free_frame(frame), Ok(()));
                assert_eq!(frames.free_frame(frame), Err(Error::NotAllocated));
                plain.pass(frame, PAGE_SIZE, Owner::Frame, Owner::Free);
            }
        }
        Step::AllocBlock { size, align } => match frames.alloc_block(size, align) {
            Ok(pa) => {
                assert_eq!(pa % align, 0);
                plain.pass(pa, size, Owner::Free, Owner::Block);
                held.blocks.push((pa, size));
            }
            Err(error) => {
                assert_eq!(error, Error::OutOfMemory);
                // A single frame keeps the whole block around it from being allocated.
                assert!(!held.frames.is_empty() || !plain.has_place(0, size, align));
            }
        },
        Step::AllocMemory { gpa, size } => match frames.alloc_memory(gpa, size) {
            Ok(pieces) => check_memory(plain, held, gpa, size, &pieces),
            Err(error) => {
                assert_eq!(error, Error::OutOfMemory);
                assert!(!held.frames.is_empty() || !plain.has_place(gpa, size, PAGE_SIZE));
            }
        },
        Step::FreeBlock(choice) => {
            if let Some((pa, size)) = take(&mut held.blocks, choice) {
                assert_eq!(frames.free_frame(pa), Err(Error::NotAllocated));
                assert_eq!(frames.free_block(pa, size), Ok(()));
                assert_eq!(frames.free_block(pa, size), Err(Error::NotAllocated));
                plain.pass(pa, size, Owner::Block, Owner::Free);
            }
        }
        Step::FreePart(choice, at, length) => {
            let (at, length) = (at * PAGE_SIZE, length * PAGE_SIZE);
            if let Some((pa, size)) = take(&mut held.blocks, choice) {
                if at + length > size {
                    held.blocks.push((pa, size));
                    return;
                }
                assert_eq!(frames.free_block(pa + at, length), Ok(()));
                plain.pass(pa + at, length, Owner::Block, Owner::Free);
                let rest = [(pa, at), (pa + at + length, size - at - length)];
                held.blocks.extend(rest.into_iter().filter(|&(_, size)| size != 0));
            }
        }
        Step::FreeAnything { pa, size } => {
            let is_block = pa % PAGE_SIZE == 0
                && size % PAGE_SIZE == 0
                && pa.checked_add(size).is_some_and(|end| end <= Plain::END)
                && plain.is_all(pa, size, Owner::Block);
            if !is_block {
                assert!(frames.free_block(pa, size).is_err());
            }
            let is_frame = held.frames.contains(&pa);
            if !is_frame {
                assert_eq!(frames.free_frame(pa), Err(Error::NotAllocated));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        rng_seed: RngSeed::Fixed(0x5711e),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn matches_the_plain_model(
        ram in regions(64 * MIB),
        reserved in regions(4 * MIB),
        steps in proptest::collection::vec(step(), 0..150),
    ) {
        let mut plain = Plain::new(&ram, &reserved);
        let fresh = Plain(plain.0.clone());
        let mut frames = Frames::<256>::new(ram, reserved).unwrap();
        let total = frames.total();
        prop_assert_eq!(total, plain.count(Owner::Free) * PAGE_SIZE);
        let mut held = Held::default();
        for step in steps {
            run(&mut frames, &mut plain, &mut held, step);
            prop_assert_eq!(frames.available(), plain.count(Owner::Free) * PAGE_SIZE);
        }
        for frame in held.frames {
            prop_assert_eq!(frames.free_frame(frame), Ok(()));
        }
        for (pa, size) in held.blocks {
            prop_assert_eq!(frames.free_block(pa, size), Ok(()));
        }
        // Nothing leaks, and free ranges are merged again.
        prop_assert_eq!(frames.available(), total);
        for run in fresh.runs() {
            prop_assert!(frames.alloc_block(run, PAGE_SIZE).is_ok());
        }
        prop_assert_eq!(frames.available(), 0);
    }

    /// Short lists, many regions: an error, never a panic; and no frame is allocated twice.
    #[test]
    fn full_region_lists_are_an_error(sizes in proptest::collection::vec(1..9u64, 1..80)) {
        let mut frames = Frames::<4>::new([region(0, 64 * MIB)], []).unwrap();
        let mut blocks = Vec::new();
        for size in sizes {
            match frames.alloc_block(size * PAGE_SIZE, PAGE_SIZE << (size % 4)) {
                Ok(pa) => blocks.push((pa, size * PAGE_SIZE)),
                Err(error) => prop_assert_eq!(error, Error::TooManyRegions),
            }
        }
        let mut kept = 0;
        for &(pa, size) in blocks.iter().step_by(2) {
            if let Err(error) = frames.free_block(pa, size) {
                prop_assert_eq!(error, Error::TooManyRegions);
                kept += size;
            }
        }
        kept += blocks.iter().skip(1).step_by(2).map(|&(_, size)| size).sum::<u64>();
        prop_assert_eq!(frames.available(), 64 * MIB - kept);
    }
}

#[test]
fn guest_memory_is_aligned_for_large_blocks() {
    let mut frames = Frames::<64>::new([region(GIB, 8 * GIB)], [region(GIB + 5 * MIB, 3 * MIB)]).unwrap();
    let memory = frames.alloc_memory(GIB, 2 * GIB).unwrap();
    assert_eq!(memory[..], [Piece { gpa: GIB, pa: 2 * GIB, size: 2 * GIB }]);
    // The range has no whole GiB, and the GiB of the hypervisor's own image has room: no other is broken up.
    let memory = frames.alloc_memory(GIB, GIB / 2).unwrap();
    assert_eq!(memory[..], [Piece { gpa: GIB, pa: GIB + 8 * MIB, size: GIB / 2 }]);
    let memory = frames.alloc_memory(GIB, 5 * GIB).unwrap();
    assert_eq!(memory[..], [Piece { gpa: GIB, pa: 4 * GIB, size: 5 * GIB }]);
}

#[test]
fn guest_memory_may_be_split_into_pieces() {
    let ram = [region(0, 21 * MIB), region(32 * MIB, 20 * MIB), region(64 * MIB, 9 * MIB)];
    let mut frames = Frames::<64>::new(ram, []).unwrap();
    let memory = frames.alloc_memory(GIB, 48 * MIB).unwrap();
    assert_eq!(
        memory[..],
        [
            Piece { gpa: GIB, pa: 0, size: 20 * MIB },
            Piece { gpa: GIB + 20 * MIB, pa: 32 * MIB, size: 20 * MIB },
            Piece { gpa: GIB + 40 * MIB, pa: 64 * MIB, size: 8 * MIB },
        ]
    );
    assert_eq!(frames.alloc_memory(GIB, 4 * MIB), Err(Error::OutOfMemory));
    assert_eq!(frames.available(), 2 * MIB);
    // The rest is no whole block, but sufficient for a smaller request.
    let memory = frames.alloc_memory(GIB, MIB).unwrap();
    assert_eq!(memory[..], [Piece { gpa: GIB, pa: 20 * MIB, size: MIB }]);
    let memory = frames.alloc_memory(GIB, MIB).unwrap();
    assert_eq!(memory[..], [Piece { gpa: GIB, pa: 72 * MIB, size: MIB }]);
    assert_eq!(frames.available(), 0);
}

#[test]
fn number_of_pieces_is_bounded() {
    let ram = (0..MAX_PIECES as u64 + 1).map(|n| region(n * MIB, PAGE_SIZE));
    let mut frames = Frames::<64>::new(ram, []).unwrap();
    let all = (MAX_PIECES as u64 + 1) * PAGE_SIZE;
    assert_eq!(frames.alloc_memory(0, all), Err(Error::OutOfMemory));
    assert_eq!(frames.available(), all);
    assert_eq!(frames.alloc_memory(0, all - PAGE_SIZE).unwrap().len(), MAX_PIECES);
}

#[test]
fn frames_keep_large_regions_whole() {
    let mut frames = Frames::<64>::new([region(0, 3 * MIB), region(GIB, GIB)], []).unwrap();
    let tables: Vec<_> = (0..600).map(|_| frames.alloc_frame().unwrap()).collect();
    // The first 2 MiB come from the small region.
    assert!(tables[..512].iter().all(|&frame| frame < 2 * MIB));
    for frame in tables.into_iter().rev() {
        frames.free_frame(frame).unwrap();
    }
    assert_eq!(frames.alloc_block(GIB, GIB), Ok(GIB));
}

#[test]
fn reserved_regions_may_end_at_the_end_of_addresses() {
    let last = !(PAGE_SIZE - 1);
    let ram = [region(0, MIB), region(last - MIB, MIB + PAGE_SIZE - 1)];
    let total = |reserved: Region| Frames::<4>::new(ram, [reserved]).map(|frames| frames.total());
    assert_eq!(total(region(last, PAGE_SIZE - 1)), Ok(2 * MIB));
    assert_eq!(total(region(u64::MAX - 1, 1)), Ok(2 * MIB));
    assert_eq!(total(region(last - 1, PAGE_SIZE)), Ok(2 * MIB - PAGE_SIZE));
    assert_eq!(total(region(PAGE_SIZE, u64::MAX - PAGE_SIZE)), Ok(PAGE_SIZE));
}

#[test]
fn invalid_requests_are_refused() {
    let new = |ram: Region| Frames::<2>::new([ram], []).map(|frames| frames.total());
    assert_eq!(new(region(u64::MAX, 2)), Err(Error::InvalidRegion));
    assert_eq!(new(region(PAGE_SIZE - 1, PAGE_SIZE)), Ok(0));
    assert_eq!(new(region(u64::MAX - 1, 1)), Err(Error::InvalidRegion));
    let ram = [0, 2, 4].map(|n| region(n * PAGE_SIZE, PAGE_SIZE));
    assert!(matches!(Frames::<2>::new(ram, []), Err(Error::TooManyRegions)));
    let hole = [region(PAGE_SIZE, 1)];
    assert_eq!(Frames::<2>::new([region(0, MIB)], hole).unwrap().total(), MIB - PAGE_SIZE);
    assert!(matches!(Frames::<2>::new([], [region(u64::MAX, 2)]), Err(Error::InvalidRegion)));

    let mut frames = Frames::<8>::new([region(0, MIB)], []).unwrap();
    assert_eq!(frames.alloc_block(0, PAGE_SIZE), Err(Error::InvalidRegion));
    assert_eq!(frames.alloc_block(PAGE_SIZE, 0), Err(Error::Unaligned));
    assert_eq!(frames.alloc_block(PAGE_SIZE, 3 * PAGE_SIZE), Err(Error::Unaligned));
    assert_eq!(frames.alloc_block(1, PAGE_SIZE), Err(Error::Unaligned));
    assert_eq!(frames.alloc_block(PAGE_SIZE, 1 << 63), Ok(0));
    assert_eq!(frames.alloc_block(MIB, 1), Err(Error::OutOfMemory));
    assert_eq!(frames.alloc_memory(1, PAGE_SIZE), Err(Error::Unaligned));
    assert_eq!(frames.alloc_memory(0, 0), Err(Error::InvalidRegion));
    let last = u64::MAX - PAGE_SIZE + 1;
    assert_eq!(frames.alloc_memory(last, PAGE_SIZE), Err(Error::InvalidRegion));
    assert_eq!(frames.free_block(last, PAGE_SIZE), Err(Error::InvalidRegion));
    assert_eq!(frames.free_block(1 << 52, PAGE_SIZE), Err(Error::NotAllocated));
}

#[test]
fn memory_near_is_preferred() {
    let ram = [region(0, GIB), region(2 * GIB, GIB)];
    let near = [region(2 * GIB, 64 * MIB), region(GIB, 2 * GIB)];
    let mut frames = Frames::<64>::new(ram, []).unwrap();
    // The other region is a better fit, and has larger blocks.
    frames.alloc_block(GIB / 2, PAGE_SIZE).unwrap();
    assert_eq!(frames.alloc_block_near(MIB, PAGE_SIZE, &near), Ok(2 * GIB));
    let memory = frames.alloc_memory_near(GIB, GIB - 8 * MIB, &near).unwrap();
    assert_eq!(memory[..], [Piece { gpa: GIB, pa: 2 * GIB + 2 * MIB, size: GIB - 8 * MIB }]);
    // Too little is left there: all of the request is placed elsewhere.
    let memory = frames.alloc_memory_near(0, 16 * MIB, &near).unwrap();
    assert_eq!(memory[..], [Piece { gpa: 0, pa: GIB / 2, size: 16 * MIB }]);
    assert_eq!(frames.alloc_block_near(8 * MIB, PAGE_SIZE, &near), Ok(GIB / 2 + 16 * MIB));
    // Frames that are partly within a region are not near.
    assert_eq!(frames.alloc_block_near(PAGE_SIZE, PAGE_SIZE, &[region(2 * GIB + MIB + 1, PAGE_SIZE)]), Ok(2 * GIB + MIB));
    for wraps in [region(u64::MAX - 1, 2), region(0, 0)] {
        assert!(frames.alloc_block_near(PAGE_SIZE, PAGE_SIZE, &[wraps]).is_ok());
    }
}

proptest! {
    /// Memory near is allocated if it suffices; otherwise the result is that of the plain allocation.
    #[test]
    fn near_or_as_without(
        holes in proptest::collection::vec((0..64u64, 1..9u64), 0..8),
        near in proptest::collection::vec((0..80u64, 0..20u64), 0..4),
        size in 1..24u64,
    ) {
        let page = |(base, size): &(u64, u64)| region(base * PAGE_SIZE, size * PAGE_SIZE);
        let mut frames = Frames::<64>::new([region(0, 64 * PAGE_SIZE)], holes.iter().map(page)).unwrap();
        let mut plain = Frames::<64>::new([region(0, 64 * PAGE_SIZE)], holes.iter().map(page)).unwrap();
        let near: Vec<_> = near.iter().map(page).collect();
        let is_near = |frame: u64| near.iter().any(|near| near.base <= frame && frame < near.base + near.size);
        let is_free = |frame: &u64| !holes.iter().map(page).any(|hole| hole.base <= *frame && *frame < hole.base + hole.size);
        let free_near = (0..64).map(|n| n * PAGE_SIZE).filter(is_free).filter(|&frame| is_near(frame)).count() as u64;
        let pieces = frames.alloc_memory_near(0, size * PAGE_SIZE, &near);
        let inside = pieces.as_ref().is_ok_and(|pieces| {
            pieces.iter().all(|piece| (piece.pa..piece.pa + piece.size).step_by(PAGE_SIZE as usize).all(is_near))
        });
        prop_assert_eq!(inside, free_near >= size);
        if !inside {
            prop_assert_eq!(&pieces, &plain.alloc_memory(0, size * PAGE_SIZE));
        }
        if let Ok(pieces) = pieces {
            let before = plain.total();
            prop_assert_eq!(frames.available(), before - size * PAGE_SIZE);
            for piece in &pieces {
                frames.free_block(piece.pa, piece.size).unwrap();
            }
        }
    }
}

/// Parts that are freed in any order leave room in the list.
#[test]
fn parts_leave_room_in_the_list() {
    let mut frames = Frames::<8>::new([region(0, 64 * MIB)], []).unwrap();
    let start = frames.alloc_block(40 * MIB, 2 * MIB).unwrap();
    let parts = (0..10).map(|number| start + 4 * MIB * number + 2 * MIB);
    let freed = parts.filter(|&part| frames.free_part(part, 2 * MIB, 4) == Ok(())).count();
    assert_eq!(freed, 3, "beside the region that was free before");
    assert_eq!(frames.available(), 24 * MIB + 3 * 2 * MIB);
    assert_eq!(frames.free_part(start, 2 * MIB, 4), Err(Error::TooManyRegions), "the part is still allocated");
    frames.free_block(start, 2 * MIB).unwrap();
    assert_eq!(frames.free_part(start, 2 * MIB, 8), Err(Error::NotAllocated), "once");
}

#[test]
fn a_block_with_contents_is_taken_and_freed() {
    let mut frames = Frames::<8>::new([region(MIB, 15 * MIB)], [region(8 * MIB, MIB)]).unwrap();
    // Outside RAM, partly outside, reserved, partly reserved; nothing.
    for (pa, size) in [(16 * MIB, MIB), (15 * MIB, 2 * MIB), (8 * MIB, MIB), (7 * MIB, 2 * MIB), (0, 2 * MIB), (2 * MIB, 0), (u64::MAX, 1)]
    {
        assert!(frames.take_block(pa, size).is_err() && !frames.is_taken(pa, size), "{pa:#x}");
    }
    assert_eq!(frames.available(), 14 * MIB);
    assert!(!frames.is_taken(2 * MIB, MIB));
    frames.take_block(2 * MIB, 2 * MIB).unwrap();
    assert!(frames.is_taken(2 * MIB, 2 * MIB) && !frames.is_taken(2 * MIB, 3 * MIB));
    assert_eq!((frames.available(), frames.take_block(3 * MIB, MIB)), (12 * MIB, Err(Error::OutOfMemory)));
    frames.free_block(2 * MIB, 2 * MIB).unwrap();
    assert_eq!(frames.available(), 14 * MIB);
}
