//! The CPU that each event of the physical ITS targets.

use crate::{Command, invalidate_event, map_event, move_event, sync};

/// An event that is mapped to an LPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedEvent {
    /// DeviceID.
    pub device: u32,
    /// EventID.
    pub event: u32,
    /// The LPI, counted from the first one: less than the `LPIS` of its [`Routing`].
    pub lpi: usize,
}

/// The CPU that each LPI targets, and the commands that act on events.
///
/// A SYNC waits for one redistributor. So it must name the one that the event targets, which is not the one on whose CPU
/// the command is issued if another CPU has moved the event meanwhile.
#[derive(Clone, Debug)]
pub struct Routing<const LPIS: usize, const CPUS: usize> {
    /// Command operand for the redistributor of each CPU.
    targets: [u64; CPUS],
    cpus: [u16; LPIS],
}

impl<const LPIS: usize, const CPUS: usize> Routing<LPIS, CPUS> {
    /// Nothing is mapped, and no redistributor is known.
    pub const fn new() -> Self {
        const { assert!(CPUS <= 1 << 16) };
        Self { targets: [0; CPUS], cpus: [0; LPIS] }
    }

    /// Sets the operand of a CPU's redistributor ([`crate::Typer::target`]). The CPU's number is its collection's.
    pub fn set_target(&mut self, cpu: usize, target: u64) {
        if let Some(place) = self.targets.get_mut(cpu) {
            *place = target;
        }
    }

    /// Operand of a CPU's redistributor.
    pub fn target(&self, cpu: usize) -> u64 {
        self.targets.get(cpu).copied().unwrap_or_default()
    }

    /// SYNC of a CPU's redistributor.
    pub fn sync(&self, cpu: usize) -> Command {
        sync(self.target(cpu))
    }

    /// Maps an event to INTID `intid`, which targets a CPU, with the configuration that is in memory.
    pub fn map(&mut self, mapped: MappedEvent, intid: u32, cpu: usize) -> [Command; 3] {
        self.set(mapped, cpu);
        let MappedEvent { device, event, .. } = mapped;
        [map_event(device, event, intid, cpu as u16), invalidate_event(device, event), self.sync(cpu)]
    }

    /// Moves an event to another CPU.
    pub fn move_to(&mut self, mapped: MappedEvent, cpu: usize) -> [Command; 2] {
        self.set(mapped, cpu);
        [move_event(mapped.device, mapped.event, cpu as u16), self.sync(cpu)]
    }

    /// Has the redistributor that an event targets read the LPI's configuration again.
    pub fn invalidate(&self, mapped: MappedEvent) -> [Command; 2] {
        let cpu = self.cpus.get(mapped.lpi).copied().unwrap_or_default();
        [invalidate_event(mapped.device, mapped.event), self.sync(cpu.into())]
    }

    fn set(&mut self, mapped: MappedEvent, cpu: usize) {
        if let Some(place) = self.cpus.get_mut(mapped.lpi) {
            *place = cpu as u16;
        }
    }
}

impl<const LPIS: usize, const CPUS: usize> Default for Routing<LPIS, CPUS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Code of a command.
    fn code(command: &Command) -> u64 {
        command[0] & 0xff
    }

    #[test]
    fn sync_follows_the_event() {
        const CPUS: usize = 3;
        let mut routing = Routing::<8, CPUS>::new();
        (0..CPUS).for_each(|cpu| routing.set_target(cpu, (cpu as u64 + 5) << 16));
        let event = |lpi: usize| MappedEvent { device: 8 + (lpi as u32 & 4) * 2, event: lpi as u32 & 3, lpi };
        let mut commands: Vec<Command> = (0..8).flat_map(|lpi| routing.map(event(lpi), 8192 + lpi as u32, 0)).collect();
        // Each event is moved by one CPU while another one invalidates it.
        for step in 0..64 {
            commands.extend(routing.move_to(event(step % 8), step / 3 % CPUS));
            commands.extend(routing.invalidate(event(step * 5 % 8)));
        }
        // Collections by DeviceID and EventID, as an ITS has them.
        let mut collections = std::collections::BTreeMap::new();
        for pair in commands.windows(2) {
            let [first, second] = pair else { unreachable!() };
            let key = (first[0] >> 32, first[1] & 0xffff_ffff);
            if matches!(code(first), 0x01 | 0x0a) {
                collections.insert(key, first[2]);
            }
            if code(second) == 0x05 {
                assert_eq!(*second, sync((collections[&key] + 5) << 16), "after {first:x?}");
            }
        }
    }

    #[test]
    fn numbers_out_of_range_have_no_effect() {
        let mut routing = Routing::<1, 1>::default();
        routing.set_target(1, 1 << 16);
        let outside = MappedEvent { device: 8, event: 0, lpi: 1 };
        assert_eq!(routing.move_to(outside, 0)[1], sync(0));
        assert_eq!(routing.invalidate(outside), [invalidate_event(8, 0), sync(0)]);
    }
}
