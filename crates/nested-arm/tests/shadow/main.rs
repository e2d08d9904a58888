//! Shadow second stages against a plain walk of both stages.
//!
//! L1 makes tables in its memory, changes them and does the maintenance that the architecture requires; L2
//! accesses addresses. The shadow's translation must equal the model's: a walk of L1's table, implemented
//! independently, and of L0's. Other tests fill L1's memory with arbitrary values.

mod host;
mod l1;

use host::{Frames, Host, Recorder};
use l1::{Change, Gone, Guest, Shape};
use proptest::prelude::*;
use stile_nested_arm::shadow::{Need, Pool, Resolution, Shadow, Stage2, WalkFaultKind, resolve};
use stile_nested_arm::tlbi::Scope;
use stile_paging::registers::PaRange;
use stile_paging::table::{Geometry, Stage2 as Plain};

/// The physical address size in L1's ID registers.
const PA_BITS: u8 = 44;
const SHADOWS: usize = 3;

fn geometry() -> Geometry {
    Geometry::stage2(PA_BITS, PaRange::Bits48).unwrap()
}

/// The hypervisor under test: the pool, the frames of its tables, and the VM's own second stage.
struct Nested {
    pool: Pool<SHADOWS>,
    frames: Frames,
    host: Host,
    tlb: Recorder,
}

impl Nested {
    /// With this number of frames for tables.
    fn new(budget: u64) -> Self {
        let geometry = geometry();
        let mut frames = Frames::new();
        let roots = [(); SHADOWS].map(|()| frames.take(geometry.root_size(), geometry.root_size(), 0).start);
        let reserved = frames.take(budget * 4096, 4096, 0xdead_beef_dead_beef);
        let pool = Pool::new(Shadow(Plain::default()), geometry, roots, reserved).unwrap();
        Self { pool, frames, host: Host, tlb: Recorder::default() }
    }

    /// L2 accesses `ipa` until it is resolved: the machine's address, or L1's fault.
    fn access(&mut self, guest: &Guest, stage2: &Stage2, ipa: u64, need: Need) -> Answer {
        let id = self.pool.acquire(&mut self.frames, stage2).expect("a shadow per vCPU");
        let answer = self.try_access(guest, stage2, id, ipa, need);
        self.pool.release(id);
        answer
    }

    fn try_access(&mut self, guest: &Guest, stage2: &Stage2, id: stile_nested_arm::shadow::ContextId, ipa: u64, need: Need) -> Answer {
        for _ in 0..2 {
            let table = self.pool.context(id).unwrap().table();
            if let Ok(found) = table.translate(&self.frames, ipa) {
                let access = found.attributes.permissions.access;
                let is_allowed = match need {
                    Need::Read => access.read,
                    Need::Write => access.write,
                    Need::Execute => access.execute && access.read,
                };
                if is_allowed {
                    return Answer::At(found.output);
                }
            }
            match resolve(stage2, guest, |l1| self.host.translate(l1), ipa, need) {
                Resolution::Forward(fault) => return Answer::Fault(fault.kind, fault.level),
                Resolution::Absent { address } => return Answer::Absent(address),
                Resolution::Map(mapping) => self.pool.map(id, &mut self.frames, &mut self.tlb, &mapping).unwrap(),
            }
        }
        panic!("{ipa:#x} still faults after it was mapped");
    }
}

/// The result of an L2 access.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// It reaches this physical address.
    At(u64),
    /// L1 gets an abort.
    Fault(WalkFaultKind, u8),
    /// L0 has no mapping at this L1 physical address.
    Absent(u64),
}

fn model(guest: &Guest, host: &Host, shape: &Shape, ipa: u64, need: Need) -> Answer {
    match guest.translate(shape, ipa) {
        Err((kind, level)) => Answer::Fault(kind, level),
        Ok((_, flags, level)) if !flags.allows(need) => Answer::Fault(WalkFaultKind::Permission, level),
        Ok((l1, _, _)) => host
            .translate(l1)
            .filter(|found| {
                let access = found.attributes.permissions;
                match need {
                    Need::Read => access.read,
                    Need::Write => access.write,
                    Need::Execute => access.execute && access.read,
                }
            })
            .map_or(Answer::Absent(l1), |found| Answer::At(found.output)),
    }
}

fn need() -> impl Strategy<Value = Need> {
    prop_oneof![Just(Need::Read), Just(Need::Write), Just(Need::Execute)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// L1 changes its tables and does the maintenance; after each change, L2 sees the translation of both
    /// stages.
    #[test]
    fn a_shadow_equals_both_stages(
        shape in l1::shape(),
        steps in prop::collection::vec((l1::change(), prop::collection::vec((any::<u64>(), need()), 1..6)), 1..24),
        budget in prop_oneof![Just(6u64), Just(1000)],
    ) {
        let mut guest = Guest::new();
        let mut nested = Nested::new(budget);
        let stage2 = shape.stage2();
        for (change, accesses) in steps {
            if let Some(Gone { start, bytes, was_table }) = guest.apply(&shape, &change) {
                // L1's maintenance: for everything, for the range, or by any address in the changed entry.
                let inside = start + ((change.inside % bytes) & !0xfff);
                let scope = match change.hint % 4 {
                    0 => Scope::VmidBoth,
                    1 => Scope::All,
                    2 | 3 if was_table => Scope::Ipa { start, bytes: Some(bytes), last_level: false },
                    2 => Scope::Ipa { start: inside, bytes: Some(4096), last_level: true },
                    _ => Scope::Ipa { start: inside, bytes: None, last_level: false },
                };
                nested.pool.invalidate(&mut nested.frames, &mut nested.tlb, shape.vmid, &scope);
            }
            for (bits, need) in accesses {
                let ipa = guest.interesting(&shape, bits);
                let expected = model(&guest, &nested.host, &shape, ipa, need);
                prop_assert_eq!(nested.access(&guest, &stage2, ipa, need), expected, "{:#x} {:?}", ipa, need);
            }
        }
        nested.pool.reset(&mut nested.frames);
        let id = nested.pool.acquire(&mut nested.frames, &stage2).unwrap();
        let table = nested.pool.context(id).unwrap().table();
        prop_assert!((0..1 << 8).all(|n| table.translate(&nested.frames, n << 19).is_err()), "a mapping remains after a reset");
    }

    /// Several second stages at a time, more than there are shadows: none sees another's mappings.
    #[test]
    fn shadows_are_isolated(
        shapes in prop::collection::vec(l1::shape(), 5),
        changes in prop::collection::vec(l1::change(), 5..20),
        accesses in prop::collection::vec((0usize..5, any::<u64>(), need()), 1..60),
    ) {
        let mut guest = Guest::new();
        let mut nested = Nested::new(1000);
        let shapes: Vec<_> = shapes.into_iter().enumerate().map(|(n, shape)| shape.at(&mut guest, n as u16)).collect();
        for (n, change) in changes.iter().enumerate() {
            guest.apply(&shapes[n % shapes.len()], change);
        }
        for (n, bits, need) in accesses {
            let ipa = guest.interesting(&shapes[n], bits);
            let expected = model(&guest, &nested.host, &shapes[n], ipa, need);
            prop_assert_eq!(nested.access(&guest, &shapes[n].stage2(), ipa, need), expected);
        }
    }

    /// L0 unmaps memory: no shadow maps it any more, by any alias.
    #[test]
    fn memory_withdrawn_by_l0_is_unmapped_from_shadows(
        shape in l1::shape(),
        changes in prop::collection::vec(l1::change(), 1..12),
        accesses in prop::collection::vec(any::<u64>(), 1..40),
        page in 0u64..host::MEMORY / 4096,
        pages in 1u64..64,
    ) {
        let mut guest = Guest::new();
        let mut nested = Nested::new(1000);
        for change in &changes {
            guest.apply(&shape, change);
        }
        let stage2 = shape.stage2();
        let ipas: Vec<_> = accesses.iter().map(|&bits| guest.interesting(&shape, bits)).collect();
        for &ipa in &ipas {
            nested.access(&guest, &stage2, ipa, Need::Read);
        }
        let (l1, size) = (host::RAM + page * 4096, pages * 4096);
        nested.pool.withdraw(&mut nested.frames, &mut nested.tlb, l1, size);
        let id = nested.pool.acquire(&mut nested.frames, &stage2).unwrap();
        for &ipa in &ipas {
            if let Ok(found) = nested.pool.context(id).unwrap().table().translate(&nested.frames, ipa) {
                let back = host::RAM + (found.output - host::PHYSICAL);
                prop_assert!(back < l1 || back >= l1 + size, "{ipa:#x} still maps to {back:#x}");
            }
        }
    }

    /// Tables of any content and registers of any value: always a defined result, and never an address
    /// outside the VM.
    #[test]
    fn hostile_tables(vtcr: u64, vttbr: u64, hcr: u64, sctlr: u64, seed: u64, ipas in prop::collection::vec(any::<u64>(), 1..24)) {
        let guest = Guest::noise(seed);
        let mut nested = Nested::new(200);
        // Mostly values that are valid for the hardware.
        for (vtcr, vttbr) in [(vtcr, vttbr), (vtcr & !0x3f | 24, host::RAM | vttbr & 0xfff_f000), (24 | 1 << 6 | 5 << 16, host::RAM)] {
            let stage2 = Stage2::decode(vtcr, vttbr, hcr | 1, sctlr, PA_BITS);
            for &bits in &ipas {
                let ipa = bits >> (bits & 0x3f).max(16);
                match nested.access(&guest, &stage2, ipa, Need::Read) {
                    Answer::At(pa) => prop_assert!((host::PHYSICAL..host::PHYSICAL + host::MEMORY).contains(&pa)),
                    Answer::Fault(_, level) => prop_assert!(level <= 3),
                    Answer::Absent(_) => {}
                }
            }
            nested.pool.invalidate(&mut nested.frames, &mut nested.tlb, stage2.vmid(), &Scope::Ipa { start: seed, bytes: Some(vtcr), last_level: false });
            nested.pool.invalidate(&mut nested.frames, &mut nested.tlb, stage2.vmid(), &Scope::Ipa { start: vttbr, bytes: None, last_level: false });
        }
    }
}

/// A 2 MiB L1 block over 2 MiB of L0's memory is one shadow entry, with the permissions of both stages.
#[test]
fn blocks_are_preserved() {
    let shape = Shape::plain();
    let mut guest = Guest::new();
    let mut nested = Nested::new(1000);
    let change = Change { ipa: 0x60_0000, level: 2, output: host::RAM + (2 << 20), flags: l1::Flags::ALL, map: true, hint: 0, inside: 0 };
    guest.apply(&shape, &change);
    let stage2 = shape.stage2();
    assert_eq!(nested.access(&guest, &stage2, 0x61_2345, Need::Write), Answer::At(host::PHYSICAL + (2 << 20) + 0x1_2345));
    let id = nested.pool.acquire(&mut nested.frames, &stage2).unwrap();
    let found = nested.pool.context(id).unwrap().table().translate(&nested.frames, 0x60_0000).unwrap();
    assert_eq!(found.level, stile_paging::table::Level::L2);
    // Removing one of its pages removes the whole block; the reverse map finds it, too.
    nested.pool.withdraw(&mut nested.frames, &mut nested.tlb, host::RAM + (2 << 20) + 0x5000, 0x1000);
    nested.pool.release(id);
    assert!(nested.tlb.invalidations > 0);
}

/// Upper bound of an operation's cost: entries read and written, of which a shadow may have 500,000.
const BOUND: usize = 8_000;

/// L1 maps one page at more addresses than there are frames for, in each of its VMs, and does all kinds of
/// maintenance: the shadows never need more than was reserved, all of it is reusable, and no operation takes
/// long.
/// need more than was reserved, all of that can be used again and again, and no operation takes long.
#[test]
fn shadows_are_bounded_in_memory_and_time() {
    const FRAMES: u64 = 900;
    let mut guest = Guest::new();
    let mut nested = Nested::new(FRAMES);
    let shapes: [Shape; SHADOWS + 1] = core::array::from_fn(|n| {
        let shape = Shape::plain().at(&mut guest, n as u16 % 2);
        // A level 2 table whose entries all point to the same level 3 table.
        guest.mirror(&shape);
        shape
    });
    let scopes = [
        Scope::All,
        Scope::VmidBoth,
        Scope::Ipa { start: 0x1234_5000, bytes: None, last_level: false },
        Scope::Ipa { start: 0, bytes: Some(1 << 38), last_level: false },
        Scope::Ipa { start: 0x1000, bytes: Some(31 << 20), last_level: true },
    ];
    let check = |nested: &Nested, what: &str| {
        let accesses = nested.frames.accesses();
        assert!(accesses < BOUND, "{what}: {accesses} accesses");
    };
    for round in 0..12 {
        for shape in &shapes {
            let stage2 = shape.stage2();
            for n in 0..500 {
                // Each access needs another table.
                assert_eq!(nested.access(&guest, &stage2, n << 21 | (n & 7) << 12, Need::Read), Answer::At(host::PHYSICAL + 0x1000));
                check(&nested, "access");
            }
        }
        // Some are in use, others not.
        let users: Vec<_> =
            shapes[..round % 3].iter().map(|shape| nested.pool.acquire(&mut nested.frames, &shape.stage2()).unwrap()).collect();
        check(&nested, "acquire");
        let scope = &scopes[round % scopes.len()];
        nested.pool.invalidate(&mut nested.frames, &mut nested.tlb, 1, scope);
        check(&nested, "invalidate");
        users.into_iter().for_each(|id| nested.pool.release(id));
        if round == 10 {
            nested.pool.reset(&mut nested.frames);
            check(&nested, "reset");
        }
    }
    assert!(nested.tlb.invalidations > 0);
}

/// L1's registers for a 40-bit VM with 4 KiB pages, as written by real hypervisors.
#[test]
fn registers_as_hypervisors_write_them() {
    let guest = Guest::new();
    let shape = Shape { input_bits: 40, start: 1, ..Shape::plain() };
    // T0SZ 24, SL0 1, walks cacheable and inner shareable, PS 40 bits, RES1.
    let vtcr = 24 | 1 << 6 | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 2 << 16 | 1 << 31;
    let stage2 = Stage2::decode(vtcr, 9 << 48 | shape.root | 1, 1, 0, PA_BITS);
    assert_eq!(stage2.vmid(), 9);
    assert_eq!(stage2.walk(&guest, 1 << 40).unwrap_err().level, 0);
    assert_eq!(stage2.walk(&guest, 0x4000_0000).unwrap_err().kind, WalkFaultKind::Translation);
}

/// Second stage disabled: L2 has L1's addresses, in large blocks.
#[test]
fn without_a_second_stage() {
    let guest = Guest::new();
    let mut nested = Nested::new(1000);
    let stage2 = Stage2::decode(0, 0, 0, 0, PA_BITS);
    assert_eq!(nested.access(&guest, &stage2, host::RAM + 0x1234, Need::Execute), Answer::At(host::PHYSICAL + 0x1234));
    assert_eq!(nested.access(&guest, &stage2, 0x1000, Need::Read), Answer::Absent(0x1000));
    assert_eq!(nested.access(&guest, &stage2, 1 << 44, Need::Read), Answer::Fault(WalkFaultKind::AddressSize, 0));
}
