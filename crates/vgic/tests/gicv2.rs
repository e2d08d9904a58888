//! The registers of a GICv2's distributor against plain ones.

use proptest::prelude::*;
use stile_vgic::gicv2::{GICD_SIZE, MAX_VCPUS, PendingSgis, Place, decode_sgir, only_target, own_targets};
use stile_vgic::{Config, Delivery, Distributor, Kick, Read, Redistributor, SAME_PPIS, Size};

/// INTIDs: SGIs, PPIs and 64 SPIs.
const INTIDS: u32 = 96;
/// Implemented priority bits.
const PRIORITIES: u8 = 0xf8;

const SIZES: [Size; 4] = [Size::Byte, Size::Half, Size::Word, Size::Double];

fn redistributor(vcpu: u8) -> Redistributor {
    Redistributor::new(Config {
        vcpu,
        last: false,
        list_registers: 4,
        priority_bits: 5,
        preemption_bits: 5,
        hw_ppis: 1 << 27 | 1 << 30,
        behind: SAME_PPIS,
        common_binary_point: false,
        gicv2: true,
    })
}

/// Registers as plain values, by INTID.
#[derive(Clone)]
struct Plain {
    vcpus: usize,
    enables: u64,
    group1: [bool; INTIDS as usize],
    enabled: [bool; INTIDS as usize],
    edge: [bool; INTIDS as usize],
    priority: [u8; INTIDS as usize],
    targets: [u8; INTIDS as usize],
}

impl Plain {
    fn new(vcpus: usize) -> Self {
        let off = [false; INTIDS as usize];
        let none = [0; INTIDS as usize];
        Self { vcpus, enables: 0, group1: off, enabled: off, edge: core::array::from_fn(|n| n < 16), priority: none, targets: none }
    }

    /// The INTIDs of an access to an array with `bits` bits for each, and whether that has the right size.
    fn of(offset: u32, size: Size, base: u32, bits: u32) -> Option<std::ops::Range<u32>> {
        let bytes = match size {
            Size::Byte if bits == 8 => 1,
            Size::Word if offset.is_multiple_of(4) => 4,
            _ => return None,
        };
        let first = (offset - base) * 8 / bits;
        Some(first..first + bytes * 8 / bits)
    }

    fn write(&mut self, offset: u32, size: Size, value: u64) {
        let bit = |at: u32| value >> at & 1 != 0;
        let mut each = |base: u32, bits: u32, set: &mut dyn FnMut(&mut Self, usize, u32)| {
            for (at, intid) in (0..).zip(Self::of(offset, size, base, bits).into_iter().flatten()) {
                if intid < INTIDS {
                    set(self, intid as usize, at * bits);
                }
            }
        };
        match offset {
            0 if size == Size::Word => self.enables = value & 3,
            0x080..0x100 => each(0x080, 1, &mut |this, n, at| this.group1[n] = bit(at)),
            0x100..0x180 => each(0x100, 1, &mut |this, n, at| this.enabled[n] |= bit(at)),
            0x180..0x200 => each(0x180, 1, &mut |this, n, at| this.enabled[n] &= !bit(at)),
            0x400..0x800 => each(0x400, 8, &mut |this, n, at| this.priority[n] = (value >> at) as u8 & PRIORITIES),
            0x800..0xc00 => each(0x800, 8, &mut |this, n, at| {
                if n >= 32 && this.vcpus > 1 {
                    this.targets[n] = (value >> at) as u8 & (0xff >> (8 - this.vcpus));
                }
            }),
            // SGIs are edge-triggered, and PPIs of timers level-sensitive.
            0xc00..0xd00 => each(0xc00, 2, &mut |this, n, at| {
                if n >= 16 && n != 27 && n != 30 {
                    this.edge[n] = bit(at + 1);
                }
            }),
            _ => {}
        }
    }

    fn read(&self, offset: u32, size: Size, vcpu: usize) -> u64 {
        let all = |base: u32, bits: u32, get: &dyn Fn(usize) -> u64| {
            let intids = (0..).zip(Self::of(offset, size, base, bits).into_iter().flatten());
            intids.filter(|(_, intid)| *intid < INTIDS).fold(0, |value, (at, intid)| value | get(intid as usize) << (at * bits))
        };
        match offset {
            0 if size == Size::Word => self.enables,
            4 if size == Size::Word => 2 | (self.vcpus as u64 - 1) << 5,
            0x080..0x100 => all(0x080, 1, &|n| self.group1[n].into()),
            0x100..0x180 => all(0x100, 1, &|n| self.enabled[n].into()),
            0x180..0x200 => all(0x180, 1, &|n| self.enabled[n].into()),
            0x400..0x800 => all(0x400, 8, &|n| self.priority[n].into()),
            0x800..0xc00 => all(0x800, 8, &|n| match n {
                0..32 if self.vcpus > 1 => 1 << vcpu,
                0..32 => 0,
                _ => self.targets[n].into(),
            }),
            0xc00..0xd00 => all(0xc00, 2, &|n| u64::from(self.edge[n]) << 1),
            _ => 0,
        }
    }
}

struct Gic {
    distributor: Distributor,
    redistributors: Vec<Redistributor>,
}

impl Gic {
    fn new(vcpus: usize) -> Self {
        let redistributors = (0..vcpus).map(|vcpu| redistributor(vcpu as u8)).collect();
        let mut distributor = Distributor::new(vcpus, 5, INTIDS);
        distributor.become_gicv2();
        Self { distributor, redistributors }
    }

    /// No vCPU is loaded, and none has an interrupt in a list register: nothing is stale.
    fn read(&mut self, vcpu: usize, offset: u32, size: Size) -> u64 {
        let vcpus = self.redistributors.len();
        let redistributor = &mut self.redistributors[vcpu];
        match Place::of(offset) {
            Place::Private(at) => match redistributor.read(at, size) {
                Read::Value(value) => value,
                Read::Stale(_) => redistributor.read_published(at, size),
            },
            Place::OwnTargets => own_targets(offset, vcpu, vcpus, size),
            Place::Sgir => 0,
            Place::PendingSgis(sgis) => sgis.value(redistributor.read_published(PendingSgis::PENDING, Size::Word), size),
            Place::Shared => match self.distributor.read_gicv2(offset, size) {
                Read::Value(value) => value,
                Read::Stale(_) => self.distributor.read_published_gicv2(offset, size),
            },
        }
    }

    fn write(&mut self, vcpu: usize, offset: u32, size: Size, value: u64) {
        let redistributor = &mut self.redistributors[vcpu];
        match Place::of(offset) {
            Place::Private(at) => _ = redistributor.write(at, size, Place::private_value(at, value)),
            Place::PendingSgis(sgis) => {
                if let Some((at, sgis)) = sgis.write(size, value) {
                    let _ = redistributor.write(at, Size::Word, sgis);
                }
            }
            Place::OwnTargets | Place::Sgir => {}
            Place::Shared => {
                let kick = self.distributor.write_gicv2(offset, size, value);
                for vcpu in kick {
                    let _ = self.redistributors[vcpu].sync_saved(&mut self.distributor);
                }
            }
        }
    }
}

/// An offset with a register, or any.
fn offset() -> impl Strategy<Value = u32> {
    let word = |range: std::ops::Range<u32>| range.prop_map(|n| n * 4);
    prop_oneof![
        Just(0u32),
        word(0x20..0x24),
        word(0x40..0x44),
        word(0x60..0x64),
        (0x400..0x470u32),
        (0x800..0x870u32),
        word(0x300..0x308),
        0..GICD_SIZE as u32
    ]
}

proptest! {
    /// Registers read as written, in each view: SPIs by all vCPUs, private interrupts by their own.
    #[test]
    fn registers_are_plain_ones(
        vcpus in 1..=MAX_VCPUS,
        writes in prop::collection::vec((offset(), 0..4usize, any::<u64>(), any::<prop::sample::Index>()), 1..60),
    ) {
        let mut gic = Gic::new(vcpus);
        // One for each vCPU: the registers of SPIs are equal in all.
        let mut plain = vec![Plain::new(vcpus); vcpus];
        for (offset, size, value, vcpu) in writes {
            let (size, vcpu) = (SIZES[size], vcpu.index(vcpus));
            // State of interrupts, and SGIs, have tests of their own.
            if (0x200..0x400).contains(&offset) || offset >= 0xf00 {
                continue;
            }
            gic.write(vcpu, offset, size, value);
            let is_shared = !matches!(Place::of(offset), Place::Private(_));
            for (index, plain) in plain.iter_mut().enumerate() {
                if is_shared || index == vcpu {
                    plain.write(offset, size, value);
                }
            }
        }
        for (vcpu, plain) in plain.iter().enumerate() {
            let offsets = [0, 4].into_iter().chain(0x80..0x200).chain(0x400..0xd00);
            for (offset, size) in offsets.flat_map(|offset| SIZES.map(|size| (offset, size))) {
                let (got, wanted) = (gic.read(vcpu, offset, size), plain.read(offset, size, vcpu));
                prop_assert_eq!(got, wanted, "vCPU {}, offset {:#x}, {:?}", vcpu, offset, size);
            }
        }
    }

    /// Any access of any size has an answer.
    #[test]
    fn hostile_accesses(
        vcpus in 1..=MAX_VCPUS,
        accesses in prop::collection::vec((0..GICD_SIZE as u32, 0..4usize, any::<u64>(), any::<prop::sample::Index>()), 1..200),
    ) {
        let mut gic = Gic::new(vcpus);
        for (offset, size, value, vcpu) in accesses {
            let (size, vcpu) = (SIZES[size], vcpu.index(vcpus));
            gic.write(vcpu, offset, size, value);
            let read = gic.read(vcpu, offset, size);
            prop_assert!(size == Size::Double || read >> (8 << size as u32) == 0, "{offset:#x} {size:?}: {read:#x}");
        }
    }

    /// GICD_SGIR's filters.
    #[test]
    fn sgis_reach_whom_they_name(value: u64, vcpus in 1..=MAX_VCPUS, sender in any::<prop::sample::Index>()) {
        let sender = sender.index(vcpus);
        let (intid, targets) = decode_sgir(value, sender, vcpus);
        prop_assert_eq!(u64::from(intid), value & 0xf);
        if let Some(only) = only_target(value, sender) {
            let expected = if only < vcpus { Kick::one(only) } else { Kick::NONE };
            prop_assert_eq!(targets, expected);
        } else {
            prop_assert!(value >> 24 & 1 != 0 || (value >> 16 & 0xff).count_ones() != 1);
        }
        for vcpu in 0..256 {
            let named = match value >> 24 & 3 {
                0 => vcpu < 8 && value >> (16 + vcpu) & 1 != 0,
                1 => vcpu != sender,
                2 => vcpu == sender,
                _ => false,
            };
            prop_assert_eq!(targets.contains(vcpu), named && vcpu < vcpus);
        }
    }
}

/// All interrupts start in group 0, and an SPI without targets goes to nobody.
#[test]
fn an_spi_goes_to_the_first_of_its_targets() {
    let mut gic = Gic::new(3);
    gic.write(0, 0, Size::Word, 1);
    gic.write(0, 0x104, Size::Word, 1 << 1);
    gic.write(0, 0xc08, Size::Word, 2 << 2);
    for redistributor in &mut gic.redistributors {
        redistributor.interface().vmcr = stile_vgic::Vmcr(0xf8 << 24 | 1);
    }
    for (list, first) in [(0u64, None), (0b110, Some(1)), (0b100, Some(2)), (0b111, Some(0)), (0xf8, None)] {
        gic.write(0, 0x284, Size::Word, u64::from(u32::MAX));
        gic.write(0, 0x821, Size::Byte, list);
        let _ = gic.distributor.pulse(33);
        for vcpu in 0..3 {
            let _ = gic.redistributors[vcpu].sync_saved(&mut gic.distributor);
            assert_eq!(gic.redistributors[vcpu].has_deliverable_saved(), first == Some(vcpu), "targets {list:#b}, vCPU {vcpu}");
        }
        gic.write(0, 0x284, Size::Word, u64::from(u32::MAX));
        for redistributor in &mut gic.redistributors {
            let _ = redistributor.sync_saved(&mut gic.distributor);
        }
    }
}

/// GICD_SPENDSGIR and GICD_CPENDSGIR are the only registers that make SGIs pending, or clear them.
#[test]
fn pending_sgis() {
    let mut gic = Gic::new(2);
    gic.write(0, 0x200, Size::Word, u64::from(u32::MAX));
    assert_eq!(gic.read(0, 0x200, Size::Word) & 0xffff, 0);
    gic.write(0, 0xf25, Size::Byte, 0x80);
    gic.write(0, 0xf2c, Size::Word, 0x0100_0000);
    assert_eq!(gic.read(0, 0x200, Size::Word) & 0xffff, 1 << 5 | 1 << 15);
    assert_eq!((gic.read(0, 0xf14, Size::Word), gic.read(0, 0xf2f, Size::Byte)), (0x100, 1));
    assert_eq!(gic.read(1, 0xf14, Size::Word), 0);
    gic.write(0, 0x280, Size::Word, u64::from(u32::MAX));
    assert_eq!(gic.read(0, 0xf24, Size::Word), 0x100);
    gic.write(0, 0xf15, Size::Byte, 1);
    assert_eq!(gic.read(0, 0xf24, Size::Word), 0);
    let mut other = redistributor(0);
    assert_eq!(other.write(0x1_0100, Size::Word, 2), Delivery::Done);
    assert_eq!(other.interface().vmcr.0 & stile_vgic::Vmcr::VFIQEN, 0);
}
