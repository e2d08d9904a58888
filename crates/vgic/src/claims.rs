//! CPUs that vCPUs with direct interrupts are pinned to, and the CPU that takes the hypervisor's own interrupts meanwhile.

use stile_board::{CpuId, CpuSet};

/// The claims of up to `VMS` VMs.
#[derive(Debug)]
pub struct Claims<const VMS: usize> {
    of: [CpuSet; VMS],
    /// Existing CPUs.
    online: CpuSet,
    housekeeper: Option<CpuId>,
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// CPUs that are claimed now, or are claimed no more: only those that were not before, or were.
    pub cpus: CpuSet,
    /// The CPU that takes the hypervisor's interrupts, if it is another one than before.
    pub moved_to: Option<CpuId>,
}

impl<const VMS: usize> Claims<VMS> {
    /// None.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self { of: [CpuSet::EMPTY; VMS], online: CpuSet::EMPTY, housekeeper: None }
    }

    /// All CPUs that are claimed.
    pub fn claimed(&self) -> CpuSet {
        self.of.iter().fold(CpuSet::EMPTY, |all, cpus| all.or(cpus))
    }

    /// CPUs that other VMs than number `vm` have claimed.
    pub fn of_others(&self, vm: usize) -> CpuSet {
        self.of.iter().enumerate().filter(|&(other, _)| other != vm % VMS).fold(CpuSet::EMPTY, |all, (_, cpus)| all.or(cpus))
    }

    /// Whether no existing CPU is left unclaimed if VM number `vm` claims `cpus`.
    pub fn leaves_none(&self, vm: usize, cpus: &CpuSet, online: &CpuSet) -> bool {
        online.without(&self.of_others(vm).or(cpus)).is_empty()
    }

    /// The CPU that takes the hypervisor's interrupts: an unclaimed one. `None` without claims, or if all CPUs are claimed.
    pub fn housekeeper(&self) -> Option<CpuId> {
        self.housekeeper
    }

    /// VM number `vm` claims CPUs.
    pub fn claim(&mut self, vm: usize, cpus: &CpuSet, online: &CpuSet) -> Change {
        let before = self.claimed();
        self.online = *online;
        self.of[vm % VMS] = self.of[vm % VMS].or(cpus);
        self.change(self.claimed().without(&before))
    }

    /// Releases the claims of VM number `vm`, which was destroyed.
    pub fn release(&mut self, vm: usize) -> Change {
        let before = self.claimed();
        self.of[vm % VMS] = CpuSet::EMPTY;
        self.change(before.without(&self.claimed()))
    }

    fn change(&mut self, cpus: CpuSet) -> Change {
        let left = self.online.without(&self.claimed());
        let before = self.housekeeper;
        let stays = before.filter(|&cpu| left.contains(cpu));
        self.housekeeper = stays.or(left.first());
        Change { cpus, moved_to: self.housekeeper.filter(|_| self.housekeeper != before) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(bits: u64) -> CpuSet {
        CpuSet::from_bits(bits)
    }

    fn moved(cpus: u64, to: Option<usize>) -> Change {
        Change { cpus: set(cpus), moved_to: to.and_then(CpuId::new) }
    }

    #[test]
    fn a_vm_that_is_gone_gives_its_cpus_back_unless_another_has_them() {
        let mut claims = Claims::<4>::new();
        let all = set(0b1111);
        assert_eq!(claims.claim(0, &set(0b0011), &all), moved(0b0011, Some(2)));
        assert_eq!(claims.claim(1, &set(0b0110), &all), moved(0b0100, Some(3)));
        assert_eq!([0, 1, 2].map(|vm| claims.of_others(vm)), [0b0110, 0b0011, 0b0111].map(set));
        assert_eq!(claims.release(0), moved(0b0001, None));
        assert_eq!(claims.claimed(), set(0b0110));
        assert_eq!(claims.release(0), moved(0, None));
        assert_eq!(claims.release(1), moved(0b0110, None));
        assert_eq!((claims.claimed(), claims.housekeeper()), (CpuSet::EMPTY, CpuId::new(3)));
    }

    #[test]
    fn a_claim_of_the_last_cpu_is_found() {
        let mut claims = Claims::<4>::new();
        let all = set(0b111);
        assert!(!claims.leaves_none(0, &set(0b011), &all) && claims.leaves_none(0, &all, &all));
        claims.claim(0, &set(0b011), &all);
        assert_eq!([0b100, 0b110, 0b001].map(|cpus| claims.leaves_none(1, &set(cpus), &all)), [true, true, false]);
        assert!(!claims.leaves_none(0, &set(0b100), &all), "its own claim");
        claims.release(0);
        assert!(!claims.leaves_none(1, &set(0b100), &all));
    }

    #[test]
    fn a_cpu_is_left_again_once_a_vm_is_gone() {
        let mut claims = Claims::<2>::new();
        let all = set(0b11);
        assert_eq!(claims.claim(0, &set(0b01), &all), moved(0b01, Some(1)));
        assert_eq!(claims.claim(1, &set(0b10), &all), moved(0b10, None));
        assert_eq!(claims.housekeeper(), None);
        assert_eq!(claims.release(0), moved(0b01, Some(0)));
    }
}
