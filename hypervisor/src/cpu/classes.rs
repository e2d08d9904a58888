//! Classes of CPUs: on boards whose CPUs differ in capacity or features (Arm big.LITTLE, hybrid processors), those that
//! are alike.

use heapless::Vec;
use stile_blob::CpuClass;
use stile_lock::TicketLock;
use stile_sched::{CpuId, CpuSet};

use super::schedule::SCHEDULE;
use crate::arch::Identity;
use crate::arch::contract::Kind;
use crate::console::log;
use crate::nodes::Members;

/// Maximum number of classes.
const MAX_CLASSES: usize = 8;

/// The classes of the online CPUs.
static CLASSES: TicketLock<Classes<Identity>> = TicketLock::new(Classes::new());

/// CPUs of the same capacity and identity.
struct Class<I> {
    capacity: u32,
    identity: I,
    cpus: CpuSet,
}

/// By descending capacity.
struct Classes<I>(Vec<Class<I>, MAX_CLASSES>);

/// Adds a CPU that comes online.
///
/// # Errors
/// A description: there are too many classes.
pub fn add(cpu: CpuId, kind: Kind) -> Result<(), &'static str> {
    CLASSES.lock().add(cpu, kind.capacity, kind.identity)
}

/// Logs the classes, if there are several. All CPUs are online.
pub fn log_all() {
    let classes = &CLASSES.lock().0;
    if classes.len() > 1 {
        for (number, class) in classes.iter().enumerate() {
            log!("CPU class {number}: capacity {}; {}", class.capacity, Members(class.cpus));
        }
    }
}

/// The online CPUs that a VM may use, before [`stile_blob::Vm::cpus_of`] chooses from them for each vCPU: those of the
/// configured class. vCPUs that are not pinned stay among CPUs of one identity, so that their guest sees no feature come or
/// go: those with the greatest capacity together.
pub fn usable_by(config: &stile_blob::Vm<'_>) -> CpuSet {
    CLASSES.lock().usable(config.class, &config.cpus, config.pinned, &SCHEDULE.online())
}

/// Logs to which CPUs [`usable_by`] restricts a VM that is configured to use more.
pub fn log_restriction(config: &stile_blob::Vm<'_>) {
    let online = SCHEDULE.online();
    let (configured, usable) = {
        let classes = CLASSES.lock();
        (classes.of(config.class, &online), classes.usable(config.class, &config.cpus, config.pinned, &online))
    };
    if config.cpus_of(0, &configured) != config.cpus_of(0, &usable) {
        log!("{}: runs on {}, as other CPUs have other features", config.name, Members(config.cpus_of(0, &usable)));
    }
}

/// Identity of the first of these CPUs.
#[allow(dead_code, reason = "not every architecture computes once what a guest can identify")]
pub fn identity_of(cpus: &CpuSet) -> Option<Identity> {
    let classes = CLASSES.lock();
    let first = cpus.first()?;
    classes.0.iter().find(|class| class.cpus.contains(first)).map(|class| class.identity)
}

impl<I: Copy + PartialEq> Classes<I> {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, cpu: CpuId, capacity: u32, identity: I) -> Result<(), &'static str> {
        if let Some(class) = self.0.iter_mut().find(|class| class.capacity == capacity && class.identity == identity) {
            class.cpus.set(cpu, true);
            return Ok(());
        }
        let before = self.0.iter().filter(|class| class.capacity >= capacity).count();
        let inserted = self.0.insert(before, Class { capacity, identity, cpus: cpu.into() });
        inserted.map_err(|_| "it is of yet another kind, and Stile supports 8 kinds of CPUs")
    }

    /// The CPUs of a class among `online`.
    fn of(&self, class: Option<CpuClass>, online: &CpuSet) -> CpuSet {
        // Of equal capacity are several classes if their identities differ: they count as one.
        let mut capacities = Vec::<u32, MAX_CLASSES>::new();
        for class in &self.0 {
            if capacities.last() != Some(&class.capacity) {
                let _ = capacities.push(class.capacity);
            }
        }
        let capacity = match class {
            None => return *online,
            Some(CpuClass::Nth(n)) => capacities.get(usize::from(n)),
            Some(CpuClass::Last) => capacities.last(),
        };
        let members = self.0.iter().filter(|class| Some(&class.capacity) == capacity);
        members.fold(CpuSet::EMPTY, |all, class| all.or(&class.cpus)).and(online)
    }

    /// See [`usable_by`].
    fn usable(&self, class: Option<CpuClass>, configured: &CpuSet, pinned: bool, online: &CpuSet) -> CpuSet {
        let of_class = self.of(class, online);
        if pinned {
            return of_class;
        }
        let cpus = if configured.is_empty() { of_class } else { of_class.and(configured) };
        // An unknown capacity counts as 1.
        let alike = |identity: &I| {
            let classes = self.0.iter().filter(|class| class.identity == *identity);
            classes.fold((0, CpuSet::EMPTY), |(capacity, all), class| {
                let more = class.cpus.and(&cpus);
                (capacity + more.len() as u64 * u64::from(class.capacity.max(1)), all.or(&more))
            })
        };
        // Of equals, the first.
        let best = self.0.iter().rev().map(|class| alike(&class.identity)).max_by_key(|(capacity, _)| *capacity);
        best.map_or(cpus, |(_, best)| best)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// CPUs of these capacities and identities, which come online in this order.
    fn classes(cpus: &[(u32, u8)]) -> Classes<u8> {
        let mut classes = Classes::new();
        for (number, &(capacity, identity)) in cpus.iter().enumerate() {
            classes.add(CpuId::wrapping(number), capacity, identity).unwrap();
        }
        classes
    }

    fn usable(classes: &Classes<u8>, class: Option<CpuClass>, cpus: u64, pinned: bool) -> u64 {
        classes.usable(class, &CpuSet::from_bits(cpus), pinned, &CpuSet::first_few(6)).words()[0]
    }

    #[test]
    fn classes_are_named_by_capacity() {
        let classes = classes(&[(400, 0), (1000, 0), (400, 0), (700, 0), (1000, 0), (700, 0)]);
        let of = |class| usable(&classes, class, 0, false);
        assert_eq!(of(None), 0b111111);
        assert_eq!([0, 1, 2, 3].map(|n| of(Some(CpuClass::Nth(n)))), [0b010010, 0b101000, 0b000101, 0]);
        assert_eq!(of(Some(CpuClass::Last)), 0b000101);
    }

    #[test]
    fn vcpus_that_move_stay_among_equal_features() {
        // Four small CPUs have less capacity than two large ones, until one of those is not configured.
        let mixed = classes(&[(100, 1), (100, 1), (1000, 2), (100, 1), (1000, 2), (100, 1)]);
        assert_eq!(usable(&mixed, None, 0, false), 0b010100);
        assert_eq!(usable(&mixed, None, 0b001011, false), 0b001011);
        assert_eq!(usable(&mixed, None, 0b001111, false), 0b000100);
        assert_eq!(usable(&mixed, Some(CpuClass::Last), 0, false), 0b101011);
        // A pinned vCPU does not move.
        assert_eq!(usable(&mixed, None, 0, true), 0b111111);
        // CPUs of unknown capacity count by their number, and of equals the first class is chosen.
        assert_eq!(usable(&classes(&[(0, 1), (0, 2), (0, 2), (0, 1), (0, 2), (0, 3)]), None, 0, false), 0b010110);
        assert_eq!(usable(&classes(&[(0, 1), (0, 2), (0, 1), (0, 2), (0, 3), (0, 4)]), None, 0, false), 0b000101);
    }

    #[test]
    fn capacities_do_not_divide_equal_features() {
        let favored = classes(&[(900, 1), (1000, 1), (900, 2), (900, 1), (1000, 1), (900, 1)]);
        assert_eq!(usable(&favored, None, 0, false), 0b111011);
        // A class may have CPUs of several features.
        assert_eq!(usable(&favored, Some(CpuClass::Last), 0, true), 0b101101);
        assert_eq!(usable(&favored, Some(CpuClass::Last), 0, false), 0b101001);
    }

    #[test]
    fn the_number_of_classes_is_limited() {
        let mut classes = Classes::new();
        let added: Vec<_> = (0..10).map(|n| classes.add(CpuId::wrapping(n), n as u32, 0u8).is_ok()).collect();
        assert_eq!(added, [true, true, true, true, true, true, true, true, false, false]);
        assert!(classes.add(CpuId::wrapping(11), 3, 0).is_ok());
    }
}
