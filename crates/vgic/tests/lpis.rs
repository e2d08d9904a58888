//! Random operations on LPIs, against a plain model of what the architecture says about each: pending or not, on which vCPU.
//! Nothing is lost, duplicated, or taken by a vCPU that it is not routed to, whatever the number of list registers, and
//! whether or not the hardware keeps an active state for an acknowledged LPI in its list register.

mod model;

use model::interface::Interface;
use proptest::prelude::*;
use stile_vgic::{Config, Delivery, Distributor, FIRST_LPI, Kick, LPIS, ListRegister, Redistributor, SAME_PPIS, Size, Vmcr};

const VCPUS: usize = 3;
/// The LPIs of the tests: in three blocks.
const TESTED: [u32; 10] = [0, 1, 2, 3, 31, 32, 33, 254, 255, LPIS - 1];
const GICD_CTLR: u32 = 0;
const GICD_TYPER: u32 = 4;

/// An LPI, as the architecture has it.
#[derive(Clone, Copy, Default)]
struct Lpi {
    pending: bool,
    target: Option<usize>,
    enabled: bool,
    priority: u8,
}

struct Machine {
    distributor: Distributor,
    redistributors: Vec<Redistributor>,
    interfaces: Vec<Interface>,
    model: [Lpi; LPIS as usize],
    /// LPIs that each vCPU has acknowledged and not ended.
    taken: [Vec<u32>; VCPUS],
    /// Hardware keeps an active state in list registers.
    keeps_active: bool,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Pulse { lpi: u32 },
    Clear { lpi: u32 },
    Route { lpi: u32, vcpu: Option<usize> },
    Configure { lpi: u32, configuration: u8 },
    Acknowledge { v: usize },
    End { v: usize },
    Unload { v: usize },
    Load { v: usize },
}

impl Machine {
    fn new(list_registers: usize, keeps_active: bool) -> Self {
        let mut distributor = Distributor::new(VCPUS, 5, 128);
        distributor.add_lpis();
        let redistributor = |v: usize| {
            Redistributor::new(Config {
                vcpu: v as u8,
                last: v + 1 == VCPUS,
                list_registers: list_registers as u8,
                priority_bits: 5,
                preemption_bits: 5,
                hw_ppis: model::HW_PPI_MASK,
                behind: SAME_PPIS,
                common_binary_point: false,
                gicv2: false,
            })
        };
        let interfaces = (0..VCPUS).map(|_| {
            let mut interface = Interface::new(list_registers, false);
            interface.cpu.vmcr = Vmcr::reset(5).with_group1(true).with_priority_mask(0xf8);
            interface
        });
        let mut machine = Self {
            distributor,
            redistributors: (0..VCPUS).map(redistributor).collect(),
            interfaces: interfaces.collect(),
            model: [Lpi::default(); LPIS as usize],
            taken: Default::default(),
            keeps_active,
        };
        for v in 0..VCPUS {
            machine.load(v);
        }
        let kick = machine.distributor.write(GICD_CTLR, Size::Word, 0b10);
        machine.settle(kick);
        machine
    }

    fn load(&mut self, v: usize) {
        if !self.redistributors[v].is_loaded() {
            let loaded = self.redistributors[v].load(&mut self.interfaces[v]);
            if loaded.delivery != Delivery::Done {
                self.settle(Kick::one(v));
            }
        }
    }

    /// Does what the hypervisor does for a kick, then takes maintenance interrupts.
    fn settle(&mut self, mut kick: Kick) {
        for _ in 0..64 {
            let maintained = (0..VCPUS).find(|&v| self.redistributors[v].is_loaded() && self.interfaces[v].needs_maintenance());
            if let Some(v) = kick.first() {
                let redistributor = &mut self.redistributors[v];
                kick = kick.without(v)
                    | match redistributor.is_loaded() {
                        true => redistributor.sync(&mut self.distributor, &mut self.interfaces[v]),
                        false => redistributor.sync_saved(&mut self.distributor),
                    };
            } else if let Some(v) = maintained {
                kick |= self.redistributors[v].maintenance(&mut self.distributor, &mut self.interfaces[v]);
                self.interfaces[v].withdraw_asserted();
            } else {
                return;
            }
        }
        panic!("maintenance does not terminate");
    }

    fn apply(&mut self, op: Op) {
        let kick = match op {
            Op::Pulse { lpi } => {
                let model = &mut self.model[lpi as usize];
                model.pending |= model.target.is_some();
                let intid = FIRST_LPI + lpi;
                // The hypervisor tries the vCPU that is loaded where the physical interrupt arrived.
                let v = lpi as usize % VCPUS;
                let (redistributor, interface) = (&mut self.redistributors[v], &mut self.interfaces[v]);
                match redistributor.is_loaded() && redistributor.pulse_resident(&mut self.distributor, interface, intid) {
                    true => Kick::NONE,
                    false => self.distributor.pulse(intid),
                }
            }
            Op::Clear { lpi } => {
                self.model[lpi as usize].pending = false;
                self.distributor.clear_lpi(FIRST_LPI + lpi)
            }
            Op::Route { lpi, vcpu } => {
                let model = &mut self.model[lpi as usize];
                model.target = vcpu;
                model.pending &= vcpu.is_some();
                self.distributor.route_lpi(FIRST_LPI + lpi, vcpu)
            }
            Op::Configure { lpi, configuration } => {
                let model = &mut self.model[lpi as usize];
                (model.enabled, model.priority) = (configuration & 1 != 0, configuration & 0xf8);
                self.distributor.configure_lpi(FIRST_LPI + lpi, configuration)
            }
            Op::Acknowledge { v } => self.acknowledge(v),
            Op::End { v } => self.end(v),
            Op::Load { v } => {
                self.load(v);
                Kick::NONE
            }
            Op::Unload { v } => {
                if self.redistributors[v].is_loaded() {
                    let _ = self.redistributors[v].unload(&mut self.interfaces[v]);
                    let cpu = &self.interfaces[v].cpu;
                    let interface = self.redistributors[v].interface();
                    interface.vmcr = cpu.vmcr;
                    interface.ap1r[0] = cpu.active[1];
                    if self.redistributors[v].maintenance_was_under_way() && self.redistributors[v].has_deliverable_saved() {
                        return self.settle(Kick::one(v));
                    }
                }
                Kick::NONE
            }
        };
        self.settle(kick);
    }

    fn acknowledge(&mut self, v: usize) -> Kick {
        if !self.redistributors[v].is_loaded() {
            return Kick::NONE;
        }
        let interface = &mut self.interfaces[v];
        let Some((intid, group1)) = interface.acknowledge() else { return Kick::NONE };
        assert!(group1);
        if !self.keeps_active {
            for lr in interface.lr.iter_mut().filter(|lr| lr.active() && lr.intid() == intid) {
                *lr = ListRegister(lr.0 & !ListRegister::ACTIVE);
            }
        }
        let lpi = intid - FIRST_LPI;
        let model = &mut self.model[lpi as usize];
        assert!(model.pending && model.enabled && model.target == Some(v), "{lpi} is taken by {v}");
        model.pending = false;
        self.taken[v].push(intid);
        Kick::NONE
    }

    fn end(&mut self, v: usize) -> Kick {
        if !self.redistributors[v].is_loaded() {
            return Kick::NONE;
        }
        let Some(intid) = self.taken[v].pop() else { return Kick::NONE };
        let interface = &mut self.interfaces[v];
        match interface.lr.iter().any(|lr| lr.active() && lr.intid() == intid) {
            true => interface.end_of_interrupt(intid, true),
            // The end of an LPI without a list register is not counted.
            false => _ = interface.cpu.drop_priority(),
        }
        Kick::NONE
    }

    /// Each loaded vCPU is signalled the most urgent LPI that it can take.
    fn check(&self) {
        for v in (0..VCPUS).filter(|&v| self.redistributors[v].is_loaded()) {
            let ready = self.model.iter().filter(|lpi| lpi.pending && lpi.enabled && lpi.target == Some(v));
            let urgent = ready.map(|lpi| lpi.priority).min().filter(|&priority| self.interfaces[v].cpu.can_take(priority, true));
            assert_eq!(self.interfaces[v].signalled().map(|lr| lr.priority()), urgent, "vCPU {v}");
        }
    }

    /// Lets the guest take all that it can, and checks that nothing is left.
    fn drain(&mut self) {
        for lpi in TESTED {
            self.apply(Op::Configure { lpi, configuration: 0x81 });
        }
        for v in 0..VCPUS {
            self.apply(Op::Load { v });
            while !self.taken[v].is_empty() {
                self.apply(Op::End { v });
            }
            while self.interfaces[v].signalled().is_some() {
                self.apply(Op::Acknowledge { v });
                self.apply(Op::End { v });
                self.check();
            }
        }
        assert!(self.model.iter().all(|lpi| !lpi.pending), "an LPI is lost");
    }
}

fn op() -> impl Strategy<Value = Op> {
    let lpi = || prop::sample::select(&TESTED[..]);
    let vcpu = || 0..VCPUS;
    prop_oneof![
        20 => lpi().prop_map(|lpi| Op::Pulse { lpi }),
        2 => lpi().prop_map(|lpi| Op::Clear { lpi }),
        10 => (lpi(), prop::option::weighted(0.9, vcpu())).prop_map(|(lpi, vcpu)| Op::Route { lpi, vcpu }),
        10 => (lpi(), prop::sample::select(&[0x81, 0x81, 0xa1, 0x41, 0x80, 0][..]))
            .prop_map(|(lpi, configuration)| Op::Configure { lpi, configuration }),
        15 => vcpu().prop_map(|v| Op::Acknowledge { v }),
        15 => vcpu().prop_map(|v| Op::End { v }),
        2 => vcpu().prop_map(|v| Op::Unload { v }),
        4 => vcpu().prop_map(|v| Op::Load { v }),
    ]
}

proptest! {
    #![proptest_config(model::cases(300))]

    #[test]
    fn lpis_are_taken_once_where_they_are_routed(
        list_registers in 1..=4usize,
        keeps_active in any::<bool>(),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut machine = Machine::new(list_registers, keeps_active);
        for op in ops {
            machine.apply(op);
            machine.check();
        }
        machine.drain();
    }
}

#[test]
fn guests_see_as_many_lpis_as_there_are() {
    let mut with = Distributor::new(1, 5, 128);
    with.add_lpis();
    let without = Distributor::new(1, 5, 128);
    let typer = |distributor: &Distributor| distributor.read_published(GICD_TYPER, Size::Word);
    // ITLinesNumber, num_LPIs, LPIS, IDbits.
    assert_eq!(typer(&with), 3 | 7 << 11 | 1 << 17 | 13 << 19);
    assert_eq!(typer(&without), 3 | 9 << 19);
}

#[test]
fn a_reset_drops_lpis_and_their_routes() {
    let mut distributor = Distributor::new(1, 5, 128);
    distributor.add_lpis();
    let mut routed = distributor.clone();
    let _ = (routed.route_lpi(FIRST_LPI, Some(0)), routed.configure_lpi(FIRST_LPI, 0x81), routed.pulse(FIRST_LPI));
    assert_ne!(routed, distributor);
    routed.reset();
    assert_eq!(routed, distributor);
}

/// A guest's deactivation, or a write to registers beyond those of SPIs, does not change an LPI in a list register, whatever its state.
#[test]
fn registers_of_spis_do_not_reach_lpis() {
    let mut distributor = Distributor::new(1, 5, 128);
    distributor.add_lpis();
    let before = distributor.clone();
    for offset in (0x80..0x8000).step_by(4).filter(|offset| !(0x80..0xd00).contains(offset) || offset % 0x80 >= 0x10) {
        let outside = !(0x400..0x480).contains(&offset) && !(0xc00..0xc20).contains(&offset) && !(0x6000..0x6400).contains(&offset);
        if outside {
            let _ = distributor.write(offset, Size::Word, u64::from(u32::MAX));
        }
    }
    for intid in [FIRST_LPI, FIRST_LPI + LPIS - 1, FIRST_LPI + LPIS, u32::MAX] {
        let _ = (distributor.clear_active(intid), distributor.set_level(intid, true));
    }
    assert_eq!(distributor, before);
}
