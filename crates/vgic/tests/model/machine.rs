//! A machine: vCPUs on physical CPUs, a hypervisor's use of this crate, and the reference beside
//! it. Every operation is applied to both; [`Machine::settle`] then completes kicks and maintenance,
//! and [`Machine::check`] compares the guest-visible state.

use std::collections::HashSet;
use std::rc::Rc;

use stile_vgic::{
    Config, Delivery, Distributor, Kick, ListRegisters, Maintenance, PendingRequests, Read, Redistributor, Requests, Sgi, SgiRegister,
    Shortcuts, Size, Vmcr,
};

use super::gic::Gic;
use super::interface::Interface;
use super::physical::Physical;
use super::{HW_PPI_MASK, HW_PPIS, RESERVED_SGI};

/// Upper bound of rounds to settle: beyond it, maintenance does not terminate.
const ROUNDS: usize = 64;

/// An interrupt that the guest has acknowledged and not ended.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub intid: u32,
    pub group1: bool,
    /// Deactivated by a register write since. If an SPI, it may now be active on another vCPU.
    pub dead: bool,
}

pub struct Machine {
    pub distributor: Distributor,
    pub redistributors: Vec<Redistributor>,
    /// Per vCPU.
    shortcuts: Vec<Rc<Shortcuts>>,
    pub pending: Vec<PendingRequests>,
    /// Per physical CPU.
    pub interfaces: Vec<Interface>,
    /// The physical CPU on which each vCPU is loaded.
    pub place: Vec<Option<usize>>,
    /// The lines of each vCPU's own timers.
    pub timers: Vec<u32>,
    pub reference: Gic,
    /// For each vCPU: acknowledged, in order.
    pub taken: Vec<Vec<Taken>>,
    /// For each vCPU: priority dropped, not yet deactivated (EOImode 1).
    pub dropped: Vec<Vec<Taken>>,
    /// Kicks that vCPUs loaded on other CPUs have not handled yet.
    pub kicked: Kick,
    /// Handle kicks of loaded vCPUs only in [`Machine::settle`] and [`Machine::answer`].
    pub late: bool,
    /// Edges and SGIs in flight to vCPUs that have not handled the kick yet, by vCPU and INTID. One that finds
    /// its interrupt acknowledged meanwhile makes it pending again.
    pub in_flight: HashSet<(usize, u32)>,
    /// SPIs that were posted to vCPUs and not taken yet, by vCPU and INTID. As those in flight, for any vCPU.
    pub posted: HashSet<(usize, u32)>,
    /// vCPUs that were put, and not checked since.
    pub sleepers: Kick,
}

impl Machine {
    pub fn new(vcpus: usize, cpus: usize, list_registers: usize, np_counts_active: bool) -> Self {
        let config = |vcpu| Config {
            vcpu: vcpu as u8,
            last: vcpu + 1 == vcpus,
            list_registers: list_registers as u8,
            priority_bits: 5,
            preemption_bits: 5,
            hw_ppis: HW_PPI_MASK,
            behind: stile_vgic::SAME_PPIS,
            common_binary_point: false,
            gicv2: false,
        };
        let mut machine = Self {
            distributor: Distributor::new(vcpus, 5, stile_vgic::INTID_END),
            redistributors: (0..vcpus).map(|v| Redistributor::new(config(v))).collect(),
            shortcuts: (0..vcpus).map(|_| Rc::default()).collect(),
            pending: (0..vcpus).map(|_| PendingRequests::new()).collect(),
            interfaces: (0..cpus).map(|_| Interface::new(list_registers, np_counts_active)).collect(),
            place: vec![None; vcpus],
            timers: vec![0; vcpus],
            reference: Gic::new(vcpus),
            taken: vec![vec![]; vcpus],
            dropped: vec![vec![]; vcpus],
            kicked: Kick::NONE,
            late: false,
            in_flight: HashSet::new(),
            posted: HashSet::new(),
            sleepers: Kick::NONE,
        };
        for v in 0..vcpus.min(cpus) {
            machine.load(v);
        }
        machine
    }

    pub fn vcpus(&self) -> usize {
        self.place.len()
    }

    /// Enables both groups everywhere and unmasks all priorities but the lowest.
    pub fn enable_groups(&mut self) {
        self.write_distributor(0, 3);
        for v in 0..self.vcpus() {
            self.set_vmcr(v, 0xff << 24 | Vmcr::VENG0 | Vmcr::VENG1, 0xff << 24 | 3);
        }
    }

    // Operations of the hypervisor.

    pub fn sync(&mut self, v: usize) {
        self.regain(v);
        self.accept(v);
        let redistributor = &mut self.redistributors[v];
        let kick = match self.place[v] {
            Some(p) => redistributor.sync(&mut self.distributor, &mut self.interfaces[p]),
            None => redistributor.sync_saved(&mut self.distributor),
        };
        assert!(!kick.contains(v));
        if !self.posted.iter().any(|(u, _)| *u == v) {
            self.kicked = self.kicked.without(v);
        }
        self.in_flight.retain(|(u, _)| *u != v);
        self.kick(kick);
    }

    /// Accepts posted SGIs into the redistributor.
    fn accept(&mut self, v: usize) {
        let requests = self.pending[v].take();
        self.redistributors[v].accept(requests);
        self.pending[v].put_back_spis(requests);
    }

    /// The SPIs of taken requests become pending in the distributor, unless they only have to in a list register.
    fn pulse_posted(&mut self, v: usize, requests: Requests) {
        for intid in requests.posted() {
            let is_done =
                self.place[v].is_some_and(|p| self.redistributors[v].pulse_posted(&mut self.distributor, &mut self.interfaces[p], intid));
            if !is_done {
                let kick = self.distributor.pulse(intid);
                self.in_flight.extend(kick.without(v).into_iter().map(|u| (u, intid)));
                self.kick(kick.without(v));
            }
        }
    }

    /// Another machine sends an SPI by way of vCPU `v`, which need not be its target.
    pub fn post(&mut self, v: usize, intid: u32) {
        let runs = self.place[v].is_some_and(|p| self.interfaces[p].direct.is_none());
        if !(runs && self.pending[v].post_spi(intid)) {
            return self.pulse(intid);
        }
        let interrupt = self.reference.interrupt(0, intid);
        interrupt.latch |= interrupt.edge;
        self.posted.insert((v, intid));
        if self.late {
            self.kicked |= Kick::one(v);
        } else {
            self.look(v);
        }
    }

    /// In-flight events of a vCPU have arrived, except for requested SGIs.
    fn arrive(&mut self, v: usize) {
        if self.pending[v].is_empty() {
            self.kicked = self.kicked.without(v);
        }
        self.in_flight.retain(|(u, intid)| *u != v || *intid < 16);
    }

    /// A vCPU handles a kick: it takes its pending requests.
    fn look(&mut self, v: usize) {
        let Some(p) = self.place[v] else {
            return self.sync(v);
        };
        self.regain(v);
        let requests = self.shortcuts[v].take_requests(&self.pending[v], &mut self.interfaces[p]);
        let requests = self.shortcuts[v].raise_posted(requests, &mut self.interfaces[p]);
        self.posted.retain(|(u, _)| *u != v);
        self.redistributors[v].accept(requests);
        self.pulse_posted(v, requests);
        self.kicked = self.kicked.without(v);
        self.in_flight.retain(|(u, intid)| *u != v || requests.spis() && *intid >= 32);
        if requests.spis() {
            self.sync(v);
        } else if !requests.is_empty() {
            self.sync_private(v);
        }
    }

    /// A vCPU handles its kicks, and its physical CPU takes pending interrupts.
    pub fn answer(&mut self, v: usize) {
        self.look(v);
        for _ in 0..ROUNDS {
            if !self.take_exit(v) {
                return;
            }
        }
        panic!("maintenance does not terminate");
    }

    pub fn kick(&mut self, kick: Kick) {
        for v in kick {
            self.pending[v].announce_spis();
            if self.late && self.place[v].is_some() {
                self.kicked |= Kick::one(v);
            } else {
                self.look(v);
            }
        }
    }

    pub fn sync_private(&mut self, v: usize) {
        self.regain(v);
        self.accept(v);
        let redistributor = &mut self.redistributors[v];
        let delivery = match self.place[v] {
            Some(p) => redistributor.sync_private(&mut self.interfaces[p]),
            None => redistributor.sync_private_saved(),
        };
        self.in_flight.retain(|(u, intid)| *u != v || *intid >= 32);
        self.follow(v, delivery);
    }

    pub fn follow(&mut self, v: usize, delivery: Delivery) {
        if delivery == Delivery::NeedsSync {
            self.sync(v);
        }
    }

    /// Takes a physical or maintenance interrupt of a loaded vCPU, if one is pending.
    fn take_exit(&mut self, v: usize) -> bool {
        let Some(p) = self.place[v] else { return false };
        let interface = &mut self.interfaces[p];
        if interface.direct.is_some() {
            return false;
        }
        let redistributor = &mut self.redistributors[v];
        let fires = interface.physical_lines & !interface.physical_active & HW_PPI_MASK;
        if fires != 0 {
            let intid = fires.trailing_zeros();
            interface.physical_active |= 1 << intid;
            if !self.shortcuts[v].raise_hw_ppi(interface, intid) {
                let delivery = redistributor.inject_hw_ppi(interface, intid);
                self.follow(v, delivery);
            }
        } else if interface.needs_maintenance() {
            let kick = redistributor.maintenance(&mut self.distributor, interface);
            interface.withdraw_asserted();
            self.arrive(v);
            self.kick(kick);
        } else {
            return false;
        }
        true
    }

    /// Completes everything in flight.
    pub fn settle(&mut self) {
        // A vCPU put while blocked with a maintenance interrupt pending must be woken; here it
        // is sufficient to sync it.
        for v in std::mem::take(&mut self.sleepers) {
            if self.place[v].is_none() && self.redistributors[v].has_deliverable_saved() {
                self.sync(v);
            }
        }
        for (v, intid) in (0..self.vcpus()).flat_map(|v| HW_PPIS.map(|intid| (v, intid))) {
            // The software timers of vCPUs that are not loaded.
            if self.place[v].is_none() && self.timers[v] >> intid & 1 != 0 {
                let delivery = self.redistributors[v].inject_hw_ppi_saved(intid);
                self.follow(v, delivery);
            }
        }
        for _ in 0..ROUNDS {
            for v in std::mem::take(&mut self.kicked) {
                self.look(v);
            }
            let exits = (0..self.vcpus()).filter(|&v| self.take_exit(v)).count();
            if exits == 0 && self.kicked.is_empty() {
                return;
            }
        }
        panic!("maintenance does not terminate: {:?}", self.interfaces);
    }

    /// Makes a vCPU's interrupts direct, if it is loaded and the state permits.
    pub fn make_direct(&mut self, v: usize) -> bool {
        let Some(p) = self.place[v] else { return false };
        self.look(v);
        let interface = &mut self.interfaces[p];
        let (direct, kick) = self.redistributors[v].enter_direct(&mut self.distributor, interface, 1 << RESERVED_SGI);
        if let Some(direct) = &direct {
            assert!(interface.lr.iter().all(|lr| lr.invalid()), "a list register is in use");
            interface.direct = Some(Physical::new(direct, interface.physical_active));
            interface.physical_active = 0;
        }
        self.kick(kick);
        direct.is_some()
    }

    /// Ends direct interrupts, if the vCPU has them: the hypervisor needs its CPU.
    pub fn regain(&mut self, v: usize) {
        let Some(p) = self.place[v] else { return };
        let interface = &mut self.interfaces[p];
        let Some(physical) = interface.direct.take() else { return };
        let (observed, active) = physical.observe();
        interface.physical_active = active;
        self.redistributors[v].leave_direct(observed, &*interface);
        self.sync(v);
    }

    pub fn load(&mut self, v: usize) -> bool {
        let free = |p: &usize| !self.place.contains(&Some(*p));
        if self.place[v].is_some() {
            return false;
        }
        let Some(p) = (0..self.interfaces.len()).rev().find(free) else {
            return false;
        };
        let interface = &mut self.interfaces[p];
        assert!(interface.lr.iter().all(|lr| lr.invalid() && !lr.eoi_asserted()));
        assert_eq!(interface.maintenance, Maintenance::default());
        assert_eq!(interface.physical_active, 0);
        let redistributor = &mut self.redistributors[v];
        let saved = redistributor.interface();
        interface.cpu.vmcr = saved.vmcr;
        interface.cpu.active = [saved.ap0r[0], saved.ap1r[0]];
        interface.physical_lines = self.timers[v];
        interface.shortcuts = Some(self.shortcuts[v].clone());
        let requests = self.pending[v].take();
        redistributor.accept(requests);
        let loaded = redistributor.load(interface);
        self.in_flight.retain(|(u, intid)| *u != v || *intid >= 32);
        interface.physical_active = loaded.active_ppis;
        self.place[v] = Some(p);
        self.pulse_posted(v, requests);
        self.follow(v, if requests.spis() { Delivery::NeedsSync } else { loaded.delivery });
        true
    }

    pub fn unload(&mut self, v: usize) -> bool {
        self.regain(v);
        if self.posted.iter().any(|(u, _)| *u == v) {
            // A vCPU that waits takes its requests first.
            self.look(v);
        }
        let Some(p) = self.place[v] else { return false };
        if self.interfaces[p].has_lowered_line_in_software() {
            // Unknown from then on: the guest would see an interrupt that is spurious.
            self.read_redistributor(v, 0x200);
        }
        let interface = &mut self.interfaces[p];
        let redistributor = &mut self.redistributors[v];
        let held = redistributor.unload(interface);
        interface.shortcuts = None;
        assert_eq!(held, interface.physical_active, "of vCPU {v}");
        interface.physical_active = 0;
        interface.physical_lines = 0;
        let saved = redistributor.interface();
        saved.vmcr = interface.cpu.vmcr;
        saved.ap0r[0] = interface.cpu.active[0];
        saved.ap1r[0] = interface.cpu.active[1];
        interface.cpu.active = [0; 2];
        interface.cpu.vmcr = Vmcr::default();
        self.place[v] = None;
        self.sleepers |= Kick::one(v);
        true
    }

    // Operations of devices.

    pub fn set_level(&mut self, v: usize, intid: u32, high: bool) {
        self.reference.set_level(v, intid, high);
        if intid >= 32 {
            let kick = self.distributor.set_level(intid, high);
            self.kick(kick);
        } else if self.redistributors[v].set_ppi_level(intid, high) {
            self.sync_private(v);
        }
    }

    pub fn pulse(&mut self, intid: u32) {
        let interrupt = self.reference.interrupt(0, intid);
        interrupt.latch |= interrupt.edge;
        // Whichever vCPU's CPU takes the physical interrupt tries its own list registers first.
        for v in 0..self.vcpus() {
            if let Some(p) = self.place[v]
                && self.redistributors[v].pulse_resident(&mut self.distributor, &mut self.interfaces[p], intid)
            {
                return;
            }
        }
        let kick = self.distributor.pulse(intid);
        self.in_flight.extend(kick.into_iter().map(|v| (v, intid)));
        self.kick(kick);
    }

    /// The condition of one of vCPU `v`'s timers begins or ends. Only the guest itself can end it.
    pub fn set_timer(&mut self, v: usize, intid: u32, high: bool) {
        let bit = 1 << intid;
        if !high && self.place[v].is_none() {
            return;
        }
        self.timers[v] = self.timers[v] & !bit | if high { bit } else { 0 };
        self.reference.set_level(v, intid, high);
        if let Some(p) = self.place[v] {
            self.interfaces[p].physical_lines = self.timers[v];
            if !high && self.interfaces[p].holds(intid) {
                // An event in a list register is withdrawn at the sync. One that waits in software must be withdrawn
                // without: the guest's write does not exit.
                self.read_redistributor(v, 0x200);
            }
        }
    }

    // Operations of a guest.

    pub fn send_sgi(&mut self, sender: usize, register: SgiRegister, value: u64) {
        let Some(p) = self.place[sender] else { return };
        let sgi = Sgi::decode(register, value, sender, self.vcpus());
        self.reference.send_sgi(sender, register, sgi.targets.words()[0], sgi.intid);
        for v in sgi.targets {
            let physical = self.place[v].and_then(|p| self.interfaces[p].direct.as_mut());
            if sgi.group1 && physical.is_some_and(|physical| physical.send(sgi.intid)) {
                continue;
            }
            self.regain(v);
            if v == sender {
                // Other events in flight may or may not arrive with it: let them.
                self.look(v);
                let interface = &mut self.interfaces[p];
                if !sgi.group1 || !self.shortcuts[v].raise_sgi(interface, sgi.intid) {
                    let delivery = self.redistributors[v].send_sgi_self(interface, sgi.intid, sgi.group1);
                    self.follow(v, delivery);
                }
                continue;
            }
            if sgi.group1 {
                self.pending[v].post_sgi(sgi.intid);
            } else if self.redistributors[v].post_sgi(sgi.intid, false) {
                self.pending[v].announce_private();
            } else {
                continue;
            }
            self.in_flight.insert((v, sgi.intid));
            if self.late && self.place[v].is_some() {
                self.kicked |= Kick::one(v);
            } else {
                self.look(v);
            }
        }
    }

    /// A write of the distributor, 32 bits.
    pub fn write_distributor(&mut self, offset: u32, value: u32) {
        if offset == 0 {
            self.reference.enables = value & 3;
        } else if (0x6000..0x8000).contains(&offset) {
            let intid = (offset - 0x6000) / 8;
            self.reference.interrupt(0, intid).route = u64::from(value) & 0x80ff_ffff;
        } else {
            self.reference.write(0, offset, value);
        }
        let kick = self.distributor.write(offset, Size::Word, value.into());
        self.kick(kick);
    }

    /// A write of vCPU `v`'s SGI_base, 32 bits.
    pub fn write_redistributor(&mut self, v: usize, offset: u32, value: u32) {
        self.reference.write(v, offset, value);
        self.accept(v);
        let write = self.redistributors[v].write(0x1_0000 + offset, Size::Word, value.into());
        if write == Delivery::NeedsSync {
            self.sync_private(v);
        }
    }

    pub fn read_distributor(&mut self, offset: u32) -> u32 {
        match self.distributor.read(offset, Size::Word) {
            Read::Value(value) => value as u32,
            Read::Stale(vcpus) => {
                assert!(!vcpus.is_empty());
                vcpus.into_iter().for_each(|v| self.sync(v));
                assert!(self.distributor.unpublished().is_empty());
                self.distributor.read_published(offset, Size::Word) as u32
            }
        }
    }

    pub fn read_redistributor(&mut self, v: usize, offset: u32) -> u32 {
        let offset = 0x1_0000 + offset;
        self.sync_private(v);
        match self.redistributors[v].read(offset, Size::Word) {
            Read::Value(value) => value as u32,
            Read::Stale(vcpus) => {
                assert_eq!(vcpus, Kick::one(v));
                self.sync_private(v);
                assert!(!self.redistributors[v].unpublished());
                self.redistributors[v].read_published(offset, Size::Word) as u32
            }
        }
    }

    /// Changes the bits `mask` of a loaded vCPU's ICH_VMCR_EL2.
    pub fn set_vmcr(&mut self, v: usize, bits: u64, mask: u64) {
        let Some(p) = self.place[v] else {
            let vmcr = &mut self.redistributors[v].interface().vmcr;
            vmcr.0 = vmcr.0 & !mask | bits & mask;
            self.reference.cpus[v].vmcr = *vmcr;
            return;
        };
        let vmcr = &mut self.interfaces[p].cpu.vmcr;
        vmcr.0 = vmcr.0 & !mask | bits & mask;
        self.reference.cpus[v].vmcr = *vmcr;
    }

    pub fn acknowledge(&mut self, v: usize) -> Option<u32> {
        let interface = &mut self.interfaces[self.place[v]?];
        let (intid, group1) = interface.acknowledge()?;
        let interrupt = self.reference.interrupt(v, intid);
        assert!(!interrupt.active, "vCPU {v} acknowledges {intid}, which is active");
        assert!(interrupt.pending() || !interrupt.edge, "vCPU {v}: {intid} was not pending");
        self.reference.acknowledge(v, intid);
        let is_posted = self.posted.iter().any(|(_, posted)| *posted == intid);
        self.reference.interrupt(v, intid).latch = is_posted || self.in_flight.contains(&(v, intid));
        self.taken[v].push(Taken { intid, group1, dead: false });
        Some(intid)
    }

    /// Ends the most recently acknowledged interrupt.
    pub fn end(&mut self, v: usize) {
        let Some(p) = self.place[v] else { return };
        let Some(taken) = self.taken[v].pop() else {
            return;
        };
        let split = self.interfaces[p].cpu.vmcr.eoi_split();
        self.interfaces[p].end_of_interrupt(taken.intid, taken.group1);
        self.reference.end_of_interrupt(v, taken.intid);
        if split {
            self.dropped[v].push(taken);
        }
    }

    /// Deactivates one of the interrupts whose priority was dropped.
    pub fn deactivate(&mut self, v: usize, which: usize) {
        let Some(p) = self.place[v] else { return };
        let split = self.interfaces[p].cpu.vmcr.eoi_split();
        let intid = if !self.dropped[v].is_empty() {
            let which = which % self.dropped[v].len();
            let taken = self.dropped[v].remove(which);
            if taken.dead && taken.intid >= 32 {
                return;
            }
            taken.intid
        } else {
            // Possibly made active by a register write, or not active at all.
            [0, 1, 7, 15, 20, 27, 30][which % 7]
        };
        let taken = |u: usize| self.taken[u].iter().any(|t| t.intid == intid);
        if !split || (0..self.vcpus()).any(|u| (intid >= 32 || u == v) && taken(u)) {
            // Without effect, or (deactivated and acknowledged again meanwhile) out of order.
            return;
        }
        if intid >= 32 && self.dropped.iter().flatten().any(|t| t.intid == intid) {
            return;
        }
        self.reference.interrupt(v, intid).active = false;
        if !self.interfaces[p].deactivate_interrupt(intid) {
            let redistributor = &mut self.redistributors[v];
            let interface = &mut self.interfaces[p];
            let kick = redistributor.deactivate(&mut self.distributor, interface, intid);
            self.arrive(v);
            self.kick(kick);
        }
    }

    /// Whether `intid` (if private, that of vCPU `v`) is acknowledged and not deactivated, by a vCPU
    /// with EOImode 0.
    pub fn in_hand(&self, v: usize, intid: u32) -> bool {
        let taken = |u: usize| self.taken[u].iter().any(|t| t.intid == intid);
        (0..self.vcpus()).any(|u| (intid >= 32 || u == v) && taken(u) && !self.reference.cpus[u].vmcr.eoi_split())
    }

    /// Records that `intid` was deactivated by a register write.
    pub fn bury(&mut self, v: usize, intid: u32) {
        for u in 0..self.vcpus() {
            if intid >= 32 || u == v {
                let all = self.taken[u].iter_mut().chain(&mut self.dropped[u]);
                all.filter(|t| t.intid == intid).for_each(|t| t.dead = true);
            }
        }
    }

    // Invariants.

    /// Compares the guest-visible state that needs no publication.
    pub fn check(&mut self) {
        let rwp = self.distributor.read_published(0, Size::Word) >> 31;
        assert_eq!(rwp, 0, "a write has not taken effect");
        for v in 0..self.vcpus() {
            let (expected, maybe_nothing) = self.reference.signalled(v);
            let redistributor = &self.redistributors[v];
            let interface = self.place[v].map(|p| &self.interfaces[p]);
            let wakes = match interface {
                Some(interface) if interface.direct.is_some() => interface.signalled().is_some(),
                Some(interface) => !interface.is_empty() && redistributor.has_deliverable(interface),
                None => redistributor.has_deliverable_saved(),
            };
            assert!(wakes || maybe_nothing, "vCPU {v} stays blocked despite {expected:?}");
            // Not known to be inactive yet.
            let strays = interface.is_some_and(|i| i.maintenance.0 & Maintenance::LRENPIE != 0);
            let lowered = interface.is_some_and(|i| i.has_lowered_line_in_software());
            assert!(!wakes || strays || lowered || !expected.is_empty(), "vCPU {v} wakes spuriously");
            let Some(interface) = interface else { continue };
            match interface.signalled().map(|lr| lr.intid()) {
                None => assert!(maybe_nothing, "vCPU {v} misses {expected:?}"),
                Some(intid) => {
                    assert!(expected.contains(&intid), "vCPU {v}: {intid} for {expected:?}");
                }
            }
            assert_eq!(interface.running_priority(), self.reference.cpus[v].running());
        }
    }

    /// Compares a register of block `n` as vCPU `v` reads it.
    pub fn check_register(&mut self, v: usize, offset: u32, n: u32) {
        let mut expected = self.reference.read(v, offset + 4 * n);
        let mut value = if n == 0 { self.read_redistributor(v, offset) } else { self.read_distributor(offset + 4 * n) };
        if n == 0 && (0x200..0x300).contains(&offset) && self.place[v].is_none() {
            // The line of a timer is unknown while its vCPU is not loaded.
            value &= !HW_PPI_MASK;
            expected &= !HW_PPI_MASK;
        }
        assert_eq!(value, expected, "register {offset:#x}, block {n}, vCPU {v}");
    }

    /// Compares all state of all interrupts.
    pub fn check_registers(&mut self) {
        for v in 0..self.vcpus() {
            for offset in [0x080, 0x100, 0x200, 0x300] {
                for n in 0..8 {
                    self.check_register(v, offset, n);
                }
            }
        }
    }
}
