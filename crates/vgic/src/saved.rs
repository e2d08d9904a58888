//! Export and import of the state of a vCPU or distributor that is at rest.
//!
//! Before an export all interrupts return from list registers to software ([`Redistributor::withdraw`]). An import
//! reduces values to those that a guest could have produced: reserved bits, unimplemented priorities and vCPUs that do
//! not exist are dropped.

use stile_snapshot::gic as saved;

use crate::block::{Block, GroupEnables};
use crate::distributor::Distributor;
use crate::interface::{CpuInterface, ListRegisters, Vmcr};
use crate::kick::{Bits, Kick};
use crate::lr::ListRegister;
use crate::redistributor::{EDGE, Redistributor, priority_mask};
use crate::shortcuts::Requests;
use crate::{BLOCK, SPI_BLOCKS};

const _: () = assert!(saved::BLOCK == BLOCK);

/// In [`saved::Block::acknowledged`]: group 1.
const GROUP1: u16 = 1 << 8;

/// Fields of ICH_VMCR_EL2 that a guest can set: VPMR, VBPR0, VBPR1, VEOIM, VCBPR, VENG1, VENG0.
const VMCR: u64 = 0xff << 24 | 0b111 << 21 | 0b111 << 18 | Vmcr::VEOIM | Vmcr::VCBPR | Vmcr::VENG1 | Vmcr::VENG0;

/// Fields of GICH_VMCR that a guest of a GICv2 can set besides: VMFIQEn, VMAckCtl.
const VMCR_GICV2: u64 = Vmcr::VFIQEN | 1 << 2;

impl Block {
    fn save(&self) -> saved::Block {
        debug_assert!(self.resident == 0, "withdrawn before");
        let acknowledged = |lr: ListRegister| u16::from(lr.priority()) | if lr.group1() { GROUP1 } else { 0 };
        saved::Block {
            enabled: self.enabled,
            group1: self.group1,
            edge: self.edge,
            line: self.line,
            pending: self.pending,
            active: self.active,
            written: self.written,
            priority: self.entry.map(ListRegister::priority),
            acknowledged: self.acknowledged.map(acknowledged),
        }
    }

    /// The state of the interrupts from `first` on.
    fn restored(first: u32, from: &saved::Block, priorities: u8, enables: GroupEnables) -> Block {
        let mut block = Block::new(first, from.edge);
        block.enabled = from.enabled;
        block.line = from.line;
        block.pending = from.pending;
        block.active = from.active;
        block.written = from.written & from.active;
        for (i, entry) in block.entry.iter_mut().enumerate() {
            *entry = entry.with_priority(from.priority[i] & priorities);
        }
        block.set_groups(from.group1);
        block.acknowledged = block.entry;
        for (i, entry) in block.acknowledged.iter_mut().enumerate() {
            let of = from.acknowledged[i];
            *entry = entry.with_priority(of as u8 & priorities).with_group1(of & GROUP1 != 0);
        }
        block.set_enables(enables);
        block.recall = 0;
        block
    }
}

impl Redistributor {
    /// Returns the interrupts in list registers of this vCPU, which is not loaded, to software, after those of
    /// `requests`, which were taken for it. The vCPU's next load must [`sync`](Self::sync). Returns other vCPUs to
    /// kick. Returns early if there is nothing to do, as after another withdrawal: a snapshot makes several for each vCPU.
    pub fn withdraw(&mut self, distributor: &mut Distributor, requests: Requests) -> Kick {
        if requests.sgi_mask() == 0 && self.is_withdrawn(distributor) {
            return Kick::NONE;
        }
        self.accept(requests);
        // Accounts for deactivations that found no list register.
        let mut kick = self.sync_saved(distributor);
        let lists = core::mem::replace(&mut self.interface, CpuInterface::new(&self.config));
        for n in Bits(self.slots.used.into()) {
            kick |= self.fold(distributor, n, lists.read(n), &lists);
        }
        let CpuInterface { vmcr, ap0r, ap1r, .. } = lists;
        (self.interface.vmcr, self.interface.ap0r, self.interface.ap1r) = (vmcr, ap0r, ap1r);
        self.maintenance = crate::Maintenance::default();
        kick.without(self.config.vcpu.into())
    }

    /// Whether no interrupt is in a list register of this vCPU, which is not loaded, and no sync would change its state.
    fn is_withdrawn(&self, distributor: &Distributor) -> bool {
        let vcpu = self.config.vcpu.into();
        let is_quiet = self.slots.used == 0 && self.interface.eoi_count == 0 && !self.overflows() && !self.unpublished;
        is_quiet && !distributor.unsynced.contains(vcpu) && !distributor.unpublished.contains(vcpu)
    }

    /// Exports the state of this vCPU after [`withdraw`](Self::withdraw).
    pub fn save(&self) -> saved::Private {
        saved::Private {
            block: self.block.save(),
            held: self.slots.held,
            asleep: self.asleep,
            vmcr: self.interface.vmcr.0,
            ap0r: self.interface.ap0r,
            ap1r: self.interface.ap1r,
        }
    }

    /// Imports the state of this vCPU, which is not loaded, after the distributor's. Its first load must
    /// [`sync`](Self::sync), and that of all other vCPUs.
    pub fn restore(&mut self, distributor: &mut Distributor, from: &saved::Private) {
        // An SPI may have become pending since the distributor's restoration, and be in a list register: a line of a device
        // that has not stopped. All vCPUs sync.
        let _ = self.withdraw(distributor, Requests(0));
        self.reset();
        let mut block = from.block.clone();
        // SGIs are edge-triggered, PPIs of timers level-sensitive.
        block.edge = block.edge & !self.config.hw_ppis | EDGE;
        // SGIs have no line.
        block.line &= !EDGE;
        self.block = Block::restored(0, &block, priority_mask(self.config.priority_bits), distributor.enables);
        self.slots.held = from.held & self.config.hw_ppis;
        let (fixed, variable) = if self.config.gicv2 { (0, VMCR | VMCR_GICV2) } else { (Vmcr::VFIQEN, VMCR) };
        let fixed = fixed | if self.config.common_binary_point { Vmcr::VCBPR } else { 0 };
        self.interface.vmcr = Vmcr(fixed | from.vmcr & variable);
        // A GICv2 has no such register.
        self.asleep = from.asleep && !self.config.gicv2;
        // Each preemption level has a bit.
        let levels = 1usize << self.config.preemption_bits.clamp(5, 7);
        let implemented = |n: usize| if n < levels / 32 { u32::MAX } else { 0 };
        self.interface.ap0r = core::array::from_fn(|n| from.ap0r[n] & implemented(n));
        self.interface.ap1r = core::array::from_fn(|n| from.ap1r[n] & implemented(n));
    }
}

impl Distributor {
    /// Number of blocks of SPIs.
    pub fn block_count(&self) -> usize {
        self.spi_blocks
    }

    /// GICD_CTLR's group enables.
    pub fn group_enables(&self) -> u8 {
        self.enables.0
    }

    /// The vCPUs that have an SPI of block `b` in a list register.
    pub fn holders(&self, b: usize) -> Kick {
        let resident = self.block(b).map_or(0, |block| block.resident);
        Bits(resident).fold(Kick::NONE, |holders, i| holders | Kick::one(self.home_of(b, i).into()))
    }

    /// Exports a block of SPIs, after [`Redistributor::withdraw`] of its [`holders`](Self::holders).
    pub fn save(&self, b: usize) -> Option<saved::Spis> {
        let mut block = self.block(b)?.save();
        // As `restore`: a home in the record is of 8 bits, in which "none" is the 256th vCPU.
        let nowhere = (0..BLOCK).filter(|&i| self.home_of(b, i) >= self.vcpus).fold(0, |bits, i| bits | 1 << i);
        block.active &= !nowhere;
        block.written &= !nowhere;
        let routes = if self.gicv2 { self.targets.get(b)?.map(u32::from) } else { *self.routes.get(b)? };
        Some(saved::Spis { block, routes, homes: core::array::from_fn(|i| self.home_of(b, i) as u8) })
    }

    /// Imports GICD_CTLR's group enables into a distributor in reset state.
    pub fn restore_enables(&mut self, enables: u8) {
        // Blocks in reset state have nothing resident.
        let _ = self.set_enables(GroupEnables(enables & GroupEnables::MASK));
        self.unsynced = Kick::NONE;
    }

    /// Imports a block of SPIs, after the group enables. Ignores a block that does not exist.
    pub fn restore(&mut self, b: usize, from: &saved::Spis) {
        if b >= self.spi_blocks.min(SPI_BLOCKS) {
            return;
        }
        let first = crate::FIRST_SPI + (b * BLOCK) as u32;
        self.blocks[b] = Block::restored(first, &from.block, self.priority_mask, self.enables);
        for i in 0..BLOCK {
            if self.gicv2 {
                self.set_targets(b, i, from.routes[i] as u8);
            } else {
                self.routes[b][i] = from.routes[i] & (Self::ANY | 0x00ff_ffff);
            }
            let home = u16::from(from.homes[i]);
            if home < self.vcpus {
                self.set_home(b, i, home);
            } else {
                // No vCPU could deactivate it.
                self.blocks[b].active &= !(1 << i);
                self.blocks[b].written &= !(1 << i);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Delivery, PendingRequests, SAME_PPIS, Size};
    use proptest::prelude::*;

    const CONFIG: Config = Config {
        vcpu: 0,
        last: false,
        list_registers: 4,
        priority_bits: 5,
        preemption_bits: 5,
        hw_ppis: 1 << 27 | 1 << 30,
        behind: SAME_PPIS,
        common_binary_point: false,
        gicv2: false,
    };

    fn machine() -> (Distributor, [Redistributor; 2]) {
        let of = |vcpu| Redistributor::new(Config { vcpu, last: vcpu == 1, ..CONFIG });
        (Distributor::new(2, 5, 64), [of(0), of(1)])
    }

    /// Exports a machine and imports it into a new one.
    fn copy(distributor: &Distributor, redistributors: &[Redistributor; 2]) -> (Distributor, [Redistributor; 2]) {
        let (mut to, mut others) = machine();
        to.restore_enables(distributor.group_enables());
        (0..distributor.block_count()).for_each(|b| to.restore(b, &distributor.save(b).unwrap()));
        for (other, from) in others.iter_mut().zip(redistributors) {
            other.restore(&mut to, &from.save());
        }
        (to, others)
    }

    /// The guest enables everything, and interrupts of each kind become pending: more than there are list registers.
    fn busy() -> (Distributor, [Redistributor; 2]) {
        let (mut distributor, mut redistributors) = machine();
        let _ = distributor.write(0, Size::Word, 3);
        let _ = distributor.write(0x104, Size::Word, u32::MAX.into());
        let _ = distributor.write(0x420, Size::Word, 0x5060_7088);
        let _ = distributor.write(0xc08, Size::Word, 0x0000_0008);
        let _ = distributor.write(0x6000 + 8 * 34, Size::Double, 1);
        let _ = distributor.write(0x6000 + 8 * 35, Size::Double, 1 << 31);
        for redistributor in &mut redistributors {
            let _ = redistributor.write(0x1_0100, Size::Word, u64::from(u32::MAX));
            let _ = redistributor.write(0x1_0418, Size::Word, 0x1020_3040);
            let _ = redistributor.write(0x14, Size::Word, 0);
            redistributor.interface().vmcr = Vmcr(0xf0 << 24 | 1 << 21 | 2 << 18 | Vmcr::VFIQEN | Vmcr::VENG1 | Vmcr::VENG0);
            let _ = redistributor.sync_saved(&mut distributor);
            for sgi in [1, 5, 9] {
                let _ = redistributor.post_sgi(sgi, true);
            }
            assert_eq!(redistributor.inject_hw_ppi_saved(27), Delivery::Done);
        }
        for spi in [33, 34, 35] {
            let _ = distributor.set_level(spi, true);
        }
        let _ = distributor.pulse(33);
        for redistributor in &mut redistributors {
            let _ = redistributor.sync_saved(&mut distributor);
            // The guest acknowledges the first.
            let lr = redistributor.interface.read(0);
            redistributor.interface.write(0, ListRegister(lr.0 & !ListRegister::PENDING | ListRegister::ACTIVE));
            redistributor.interface.ap1r[0] = 1 << 4;
        }
        (distributor, redistributors)
    }

    /// Registers as the guest reads them, of a machine at rest.
    fn view(distributor: &Distributor, redistributors: &[Redistributor; 2]) -> std::vec::Vec<u64> {
        let words = (0..0x1000).step_by(4).chain(0x6100..0x6200);
        let mut view: std::vec::Vec<u64> = words.map(|offset| distributor.read_published(offset, Size::Word)).collect();
        for redistributor in redistributors {
            view.extend((0..0x1_1000).step_by(4).map(|offset| redistributor.read_published(offset, Size::Word)));
            view.extend([redistributor.interface.vmcr.0, redistributor.active_for_test().into()]);
        }
        view
    }

    impl Redistributor {
        fn active_for_test(&self) -> u32 {
            self.slots.held
        }
    }

    #[test]
    fn a_copy_is_what_the_guest_had() {
        let (mut distributor, mut redistributors) = busy();
        for redistributor in &mut redistributors {
            let _ = redistributor.withdraw(&mut distributor, PendingRequests::new().take());
        }
        let before = view(&distributor, &redistributors);
        let (mut to, mut others) = copy(&distributor, &redistributors);
        assert_eq!(view(&to, &others), before);
        assert_eq!(others[0].save(), redistributors[0].save());
        // Both deliver the same.
        let lists = |distributor: &mut Distributor, redistributors: &mut [Redistributor; 2]| {
            redistributors.each_mut().map(|redistributor| {
                let _ = redistributor.sync_saved(distributor);
                let mut lists: std::vec::Vec<u64> = (0..4).map(|n| redistributor.interface.read(n).0).collect();
                lists.sort_unstable();
                (lists, redistributor.has_deliverable_saved())
            })
        };
        let delivered = lists(&mut distributor, &mut redistributors);
        assert_eq!(lists(&mut to, &mut others), delivered);
        assert!(
            delivered.iter().all(|(lists, _)| lists.iter().filter(|&&lr| lr != 0).count() == 4),
            "all list registers are used: {delivered:x?}"
        );
    }

    #[test]
    fn a_withdrawal_loses_no_request_and_changes_nothing_that_the_guest_sees() {
        let (mut distributor, mut redistributors) = busy();
        let requests = PendingRequests::new();
        requests.post_sgi(7);
        let _ = redistributors[1].withdraw(&mut distributor, requests.take());
        assert_eq!(redistributors[1].read_published(0x1_0200, Size::Word) >> 7 & 1, 1);
        let view = redistributors[1].save();
        assert!(redistributors[1].is_withdrawn(&distributor), "another withdrawal returns early");
        let _ = redistributors[1].sync_saved(&mut distributor);
        assert!(!redistributors[1].is_withdrawn(&distributor));
        let _ = redistributors[1].withdraw(&mut distributor, PendingRequests::new().take());
        assert_eq!(redistributors[1].save(), view);
    }

    /// Input arrives at the console between two parts of a restoration.
    #[test]
    fn an_spi_that_becomes_pending_during_a_restoration_is_delivered() {
        let (distributor, mut redistributors) = machine();
        let mut distributor = distributor;
        let private = redistributors[0].save();
        let spis = saved::Block { enabled: 1 << 1, group1: 1 << 1, priority: [0x80; BLOCK], ..saved::Spis::default().block };
        distributor.restore_enables(2);
        distributor.restore(0, &saved::Spis { block: spis, ..saved::Spis::default() });
        let _ = distributor.set_level(33, true);
        let _ = redistributors[0].sync_saved(&mut distributor);
        assert_eq!(redistributors[0].interface.read(0).intid(), 33);
        redistributors[0].restore(&mut distributor, &private);
        redistributors[1].restore(&mut distributor, &private);
        let _ = redistributors[0].sync_saved(&mut distributor);
        let _ = redistributors[1].sync_saved(&mut distributor);
        let lr = redistributors[0].interface.read(0);
        assert!(lr.intid() == 33 && lr.pending(), "{lr:?}");
        assert!(distributor.settled());
    }

    /// A device raises its line between two parts of an export.
    #[test]
    fn an_spi_that_becomes_pending_during_an_export_is_saved() {
        let (mut distributor, mut redistributors) = machine();
        let spis = saved::Block { enabled: 1 << 1, group1: 1 << 1, edge: 1 << 1, priority: [0x80; BLOCK], ..saved::Spis::default().block };
        distributor.restore_enables(2);
        distributor.restore(0, &saved::Spis { block: spis, ..saved::Spis::default() });
        let _ = distributor.set_level(33, true);
        let _ = redistributors[0].sync_saved(&mut distributor);
        assert_eq!(redistributors[0].interface.read(0).intid(), 33);
        let holders = distributor.holders(0);
        assert_eq!(holders, Kick::one(0));
        let _ = redistributors[0].withdraw(&mut distributor, Requests(0));
        assert!(distributor.holders(0).is_empty());
        assert_eq!(distributor.save(0).unwrap().block.pending, 1 << 1);
    }

    fn block() -> impl Strategy<Value = saved::Block> {
        (any::<[u32; 7]>(), any::<[u8; 32]>(), any::<[u16; 32]>()).prop_map(|(bits, priority, acknowledged)| {
            let [enabled, group1, edge, line, pending, active, written] = bits;
            saved::Block { enabled, group1, edge, line, pending, active, written, priority, acknowledged }
        })
    }

    proptest! {
        /// After any snapshot, list registers have only interrupts that exist, linked to the vCPU's own timers, and the engine's state
        /// survives another export unchanged.
        #[test]
        fn a_hostile_snapshot_is_a_hostile_guest(
            private in (block(), any::<u32>(), any::<bool>(), any::<u64>(), any::<[u32; 4]>(), any::<[u32; 4]>()),
            spis in (block(), any::<[u32; 32]>(), any::<[u8; 32]>()),
            enables in any::<u8>(),
            common_binary_point in any::<bool>(),
        ) {
            let mut distributor = Distributor::new(2, 5, 64);
            let mut redistributor = Redistributor::new(Config { common_binary_point, ..CONFIG });
            let (block, held, asleep, vmcr, ap0r, ap1r) = private;
            distributor.restore_enables(enables);
            distributor.restore(0, &saved::Spis { block: spis.0, routes: spis.1, homes: spis.2 });
            distributor.restore(1, &saved::Spis::default());
            redistributor.restore(&mut distributor, &saved::Private { block, held, asleep, vmcr, ap0r, ap1r });
            let first = redistributor.save();
            prop_assert_eq!(first.vmcr & !VMCR, Vmcr::VFIQEN);
            prop_assert!(!common_binary_point || first.vmcr & Vmcr::VCBPR != 0);
            prop_assert!(first.ap0r[1..] == [0; 3] && first.ap1r[1..] == [0; 3]);
            let _ = redistributor.sync_saved(&mut distributor);
            for n in 0..4 {
                let lr = redistributor.interface.read(n);
                prop_assert!(lr.intid() < 64 && lr.priority() & 7 == 0, "{lr:?}");
                prop_assert!(!lr.hw() || matches!(lr.physical_intid(), 27 | 30) && lr.physical_intid() == lr.intid());
            }
            let _ = redistributor.withdraw(&mut distributor, PendingRequests::new().take());
            let again = redistributor.save();
            prop_assert_eq!((again.block.enabled, again.block.group1, again.block.edge), (first.block.enabled, first.block.group1, first.block.edge));
            prop_assert_eq!((again.block.active, again.vmcr), (first.block.active, first.vmcr));
        }

        /// A GICv2 also has target lists, which determine where interrupts go.
        #[test]
        fn a_hostile_snapshot_of_a_gicv2_is_a_hostile_guest(
            spis in (block(), any::<[u32; 32]>(), any::<[u8; 32]>()),
            vmcr in any::<u64>(),
            asleep in any::<bool>(),
            vcpus in 1..=8_u16,
        ) {
            let of = || {
                let mut distributor = Distributor::new(vcpus.into(), 5, 64);
                distributor.become_gicv2();
                (distributor, Redistributor::new(Config { gicv2: true, last: vcpus == 1, ..CONFIG }))
            };
            let (mut distributor, mut redistributor) = of();
            distributor.restore_enables(3);
            let private = saved::Private { vmcr, asleep, ..saved::Private::default() };
            distributor.restore(0, &saved::Spis { block: spis.0, routes: spis.1, homes: spis.2 });
            redistributor.restore(&mut distributor, &private);
            for i in 0..BLOCK {
                let list = distributor.targets[0][i];
                let expected = if vcpus == 1 { 0 } else { spis.1[i] as u8 & (0xff >> (8 - vcpus)) };
                prop_assert_eq!(list, expected);
                prop_assert_eq!(distributor.read_published_gicv2(0x820 + i as u32, Size::Byte), u64::from(list));
                let (mut written, _) = of();
                let _ = written.write_gicv2(0x820 + i as u32, Size::Byte, spis.1[i].into());
                prop_assert_eq!(distributor.routes[0][i], written.routes[0][i]);
            }
            let first = (distributor.save(0).unwrap(), redistributor.save());
            prop_assert_eq!(first.1.vmcr, vmcr & (VMCR | VMCR_GICV2));
            prop_assert!(!first.1.asleep);
            let (mut to, mut other) = of();
            to.restore_enables(distributor.group_enables());
            to.restore(0, &first.0);
            other.restore(&mut to, &first.1);
            prop_assert_eq!((to.save(0).unwrap(), other.save()), first);
            prop_assert_eq!((to.routes, to.targets), (distributor.routes, distributor.targets));
        }
    }
}
