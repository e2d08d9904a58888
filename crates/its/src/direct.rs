//! LPIs of a VM that the physical ITS translates messages to, without Stile (GICv4: vLPIs).
//!
//! An event of a function has the same EventID in the physical ITS. It is mapped there while the VM's ITS translates it and
//! its LPI is routed to a vCPU. If a guest maps two events to an LPI, which is UNPREDICTABLE, the last one alone is mapped.

use stile_board::MAX_FUNCTIONS;
use stile_board::intid::{LPI_BASE, LPI_COUNT};

use crate::guest::EVENTS;
use crate::{Command, clear_pending, discard, invalidate_event, map_virtual_event, move_virtual_event, set_pending, virtual_sync};

const LPIS: usize = LPI_COUNT as usize;

/// An event of a function.
type Source = (u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lpi {
    /// The event that the VM's ITS translates to it.
    source: Option<Source>,
    /// The vCPU that it is routed to.
    vcpu: Option<u16>,
    /// The event and the vCPU that the physical ITS has.
    mapped: Option<(Source, u16)>,
}

const UNUSED: Lpi = Lpi { source: None, vcpu: None, mapped: None };

/// The LPIs of a VM, and the commands for the physical ITS by which they change. vPEs have consecutive numbers, and so have
/// their doorbells.
#[derive(Clone, Debug)]
pub struct DirectLpis {
    first_vpe: u16,
    /// Doorbell of the first vPE.
    first_doorbell: u32,
    vcpus: u16,
    /// DeviceID of each function in the physical ITS.
    devices: [u32; MAX_FUNCTIONS],
    lpis: [Lpi; LPIS],
    /// The LPI of each event, counted from the first one, plus 1; or 0.
    events: [[u16; EVENTS]; MAX_FUNCTIONS],
}

impl DirectLpis {
    /// The reset state: nothing is mapped. The VM has `vcpus` vCPUs, and vPEs from `first_vpe` on.
    pub const fn new(first_vpe: u16, first_doorbell: u32, vcpus: u16) -> Self {
        let (lpis, events) = ([UNUSED; LPIS], [[0; EVENTS]; MAX_FUNCTIONS]);
        Self { first_vpe, first_doorbell, vcpus, devices: [0; MAX_FUNCTIONS], lpis, events }
    }

    /// Sets the physical DeviceID of a function, none of whose events is mapped.
    pub fn set_device(&mut self, function: usize, device: u32) {
        if let Some(place) = self.devices.get_mut(function) {
            *place = device;
        }
    }

    /// Unmaps everything.
    pub fn reset(&mut self, mut execute: impl FnMut(&[Command])) {
        for lpi in 0..LPIS {
            (self.lpis[lpi].source, self.lpis[lpi].vcpu) = (None, None);
            self.apply(lpi, &mut execute);
        }
        self.events = [[0; EVENTS]; MAX_FUNCTIONS];
    }

    /// Translates an event of a function to an LPI, or to nothing.
    pub fn translate(&mut self, function: usize, event: usize, lpi: Option<u32>, mut execute: impl FnMut(&[Command])) {
        let Some(place) = self.events.get_mut(function).and_then(|events| events.get_mut(event)) else { return };
        let source = (function as u8, event as u8);
        let lpi = lpi.and_then(index);
        let before = core::mem::replace(place, lpi.map_or(0, |lpi| lpi as u16 + 1));
        if let Some(before) = usize::from(before).checked_sub(1)
            && Some(before) != lpi
            && self.lpis[before].source == Some(source)
        {
            self.lpis[before].source = None;
            self.apply(before, &mut execute);
        }
        if let Some(lpi) = lpi {
            self.lpis[lpi].source = Some(source);
            self.apply(lpi, &mut execute);
        }
    }

    /// Routes an LPI to a vCPU, or to none, where it ceases to be pending.
    pub fn route(&mut self, lpi: u32, vcpu: Option<usize>, execute: impl FnMut(&[Command])) {
        let Some(lpi) = index(lpi) else { return };
        self.lpis[lpi].vcpu = vcpu.and_then(|vcpu| u16::try_from(vcpu).ok()).filter(|&vcpu| vcpu < self.vcpus);
        self.apply(lpi, execute);
    }

    /// Has the redistributor read the configuration of an LPI again.
    pub fn invalidate(&self, lpi: u32, execute: impl FnMut(&[Command])) {
        self.on_mapped(lpi, invalidate_event, execute);
    }

    /// Makes an LPI pending, if it is mapped.
    pub fn set_pending(&self, lpi: u32, execute: impl FnMut(&[Command])) {
        self.on_mapped(lpi, set_pending, execute);
    }

    /// Makes an LPI not pending.
    pub fn clear_pending(&self, lpi: u32, execute: impl FnMut(&[Command])) {
        self.on_mapped(lpi, clear_pending, execute);
    }

    fn on_mapped(&self, lpi: u32, command: impl Fn(u32, u32) -> Command, mut execute: impl FnMut(&[Command])) {
        if let Some((source, vcpu)) = index(lpi).and_then(|lpi| self.lpis[lpi].mapped) {
            let (device, event) = self.physical(source);
            execute(&[command(device, event), self.sync(vcpu)]);
        }
    }

    /// Makes the physical ITS map an LPI as it is wanted.
    fn apply(&mut self, lpi: usize, mut execute: impl FnMut(&[Command])) {
        let Lpi { source, vcpu, mapped } = self.lpis[lpi];
        let wanted = source.zip(vcpu);
        if wanted == mapped {
            return;
        }
        self.lpis[lpi].mapped = wanted;
        if let (Some((from, old)), Some((to, new))) = (mapped, wanted)
            && from == to
        {
            let (device, event) = self.physical(to);
            return execute(&[move_virtual_event(device, event, self.vpe(new), self.doorbell(new)), self.sync(old), self.sync(new)]);
        }
        if let Some((from, old)) = mapped {
            let (device, event) = self.physical(from);
            execute(&[discard(device, event), self.sync(old)]);
        }
        if let Some((to, new)) = wanted {
            let (device, event) = self.physical(to);
            let map = map_virtual_event(device, event, self.vpe(new), LPI_BASE + lpi as u32, self.doorbell(new));
            execute(&[map, invalidate_event(device, event), self.sync(new)]);
        }
    }

    fn physical(&self, (function, event): Source) -> (u32, u32) {
        (self.devices[usize::from(function) % MAX_FUNCTIONS], event.into())
    }

    fn vpe(&self, vcpu: u16) -> u16 {
        self.first_vpe + vcpu
    }

    fn doorbell(&self, vcpu: u16) -> u32 {
        self.first_doorbell + u32::from(vcpu)
    }

    fn sync(&self, vcpu: u16) -> Command {
        virtual_sync(self.vpe(vcpu))
    }
}

/// Index of an LPI.
fn index(lpi: u32) -> Option<usize> {
    lpi.checked_sub(LPI_BASE).map(|index| index as usize).filter(|&index| index < LPIS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use super::*;

    const VCPUS: usize = 3;
    const FIRST_VPE: u16 = 40;
    const FIRST_DOORBELL: u32 = 10_000;
    const FUNCTIONS: usize = 2;

    /// The physical ITS: vPE and LPI of each event, and the pending LPIs. It panics where an ITS could stall.
    #[derive(Default)]
    struct Its {
        events: BTreeMap<(u32, u32), (u16, u32)>,
        pending: BTreeMap<(u32, u32), ()>,
        unsynchronized: Vec<u16>,
    }

    impl Its {
        fn execute(&mut self, commands: &[Command]) {
            for command in commands {
                let event = ((command[0] >> 32) as u32, command[1] as u32);
                let vpe = (command[1] >> 32) as u16;
                let doorbell = || assert_eq!((command[2] >> 32) as u32, FIRST_DOORBELL + u32::from(vpe - FIRST_VPE));
                let is_vpe = |vpe: u16| assert!((FIRST_VPE..FIRST_VPE + VCPUS as u16).contains(&vpe));
                match command[0] as u8 {
                    0x2a => {
                        is_vpe(vpe);
                        doorbell();
                        let lpi = command[2] as u32;
                        assert!(self.events.values().all(|&(_, other)| other != lpi), "two events of an LPI");
                        assert_eq!(self.events.insert(event, (vpe, lpi)), None);
                    }
                    0x21 => {
                        is_vpe(vpe);
                        doorbell();
                        assert_eq!(command[2] & 1, 1);
                        let place = self.events.get_mut(&event).unwrap();
                        self.unsynchronized.push(place.0);
                        place.0 = vpe;
                    }
                    0x0f => {
                        let (vpe, _) = self.events.remove(&event).unwrap();
                        self.pending.remove(&event);
                        self.unsynchronized.push(vpe);
                        continue;
                    }
                    0x25 => {
                        self.unsynchronized.retain(|&other| other != vpe);
                        continue;
                    }
                    0x03 => _ = self.pending.insert(event, ()),
                    0x04 => _ = self.pending.remove(&event),
                    0x0c => {}
                    code => panic!("command {code:#x}"),
                }
                self.unsynchronized.push(self.events[&event].0);
            }
            assert!(self.unsynchronized.is_empty(), "without VSYNC: {commands:x?}");
        }
    }

    /// A VM's translations: for each event its LPI, for each LPI its last event and its vCPU.
    #[derive(Default)]
    struct Wanted {
        events: BTreeMap<(usize, usize), u32>,
        sources: BTreeMap<u32, (usize, usize)>,
        routes: BTreeMap<u32, usize>,
    }

    #[test]
    fn the_physical_its_maps_what_the_guest_wants() {
        let (mut lpis, mut its, mut wanted) = (DirectLpis::new(FIRST_VPE, FIRST_DOORBELL, VCPUS as u16), Its::default(), Wanted::default());
        (0..FUNCTIONS).for_each(|function| lpis.set_device(function, 0x10 + function as u32));
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for step in 0..20_000 {
            let (function, event) = (next(FUNCTIONS as u64) as usize, next(4) as usize);
            let lpi = LPI_BASE + next(6) as u32;
            match next(8) {
                0..=2 => {
                    let lpi = (next(4) != 0).then_some(lpi);
                    lpis.translate(function, event, lpi, |commands| its.execute(commands));
                    if let Some(before) = wanted.events.remove(&(function, event))
                        && wanted.sources.get(&before) == Some(&(function, event))
                    {
                        wanted.sources.remove(&before);
                    }
                    if let Some(lpi) = lpi {
                        wanted.events.insert((function, event), lpi);
                        wanted.sources.insert(lpi, (function, event));
                    }
                }
                3..=5 => {
                    let vcpu = (next(4) != 0).then(|| next(VCPUS as u64) as usize);
                    lpis.route(lpi, vcpu, |commands| its.execute(commands));
                    match vcpu {
                        Some(vcpu) => _ = wanted.routes.insert(lpi, vcpu),
                        None => _ = wanted.routes.remove(&lpi),
                    }
                }
                6 => lpis.set_pending(lpi, |commands| its.execute(commands)),
                _ => lpis.clear_pending(lpi, |commands| its.execute(commands)),
            }
            lpis.invalidate(lpi, |commands| its.execute(commands));
            if step % 4000 == 3999 {
                lpis.reset(|commands| its.execute(commands));
                (wanted, its.pending) = (Wanted::default(), BTreeMap::default());
            }
            let expected = wanted.sources.iter().filter_map(|(&lpi, &(function, event))| {
                let vcpu = *wanted.routes.get(&lpi)?;
                Some(((0x10 + function as u32, event as u32), (FIRST_VPE + vcpu as u16, lpi)))
            });
            assert_eq!(its.events, expected.collect(), "step {step}");
        }
    }

    #[test]
    fn numbers_out_of_range_have_no_effect() {
        let mut lpis = DirectLpis::new(FIRST_VPE, FIRST_DOORBELL, VCPUS as u16);
        let fail = |commands: &[Command]| panic!("{commands:x?}");
        lpis.set_device(MAX_FUNCTIONS, 1);
        lpis.translate(MAX_FUNCTIONS, 0, Some(LPI_BASE), fail);
        lpis.translate(0, EVENTS, Some(LPI_BASE), fail);
        lpis.translate(0, 0, Some(LPI_BASE - 1), fail);
        lpis.translate(0, 1, Some(LPI_BASE), fail);
        lpis.route(LPI_BASE, Some(VCPUS), fail);
        lpis.route(LPI_BASE + LPI_COUNT, Some(0), fail);
        lpis.set_pending(LPI_BASE - 1, fail);
        lpis.set_pending(LPI_BASE, fail);
        lpis.clear_pending(u32::MAX, fail);
    }
}
