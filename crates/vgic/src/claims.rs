//! CPUs that vCPUs with direct interrupts are pinned to, and the CPU that takes the hypervisor's own interrupts meanwhile.

/// The claims of up to `VMS` VMs. CPUs are a bit each.
#[derive(Debug)]
pub struct Claims<const VMS: usize> {
    of: [u64; VMS],
    /// Existing CPUs.
    online: u64,
    housekeeper: Option<u8>,
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// CPUs that are claimed now, or are claimed no more: only those that were not before, or were.
    pub cpus: u64,
    /// The CPU that takes the hypervisor's interrupts, if it is another one than before.
    pub moved_to: Option<u8>,
}

impl<const VMS: usize> Claims<VMS> {
    /// None.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self { of: [0; VMS], online: 0, housekeeper: None }
    }

    /// All CPUs that are claimed.
    pub fn claimed(&self) -> u64 {
        self.of.iter().fold(0, |all, cpus| all | cpus)
    }

    /// CPUs that other VMs than number `vm` have claimed.
    pub fn of_others(&self, vm: usize) -> u64 {
        self.of.iter().enumerate().filter(|&(other, _)| other != vm % VMS).fold(0, |all, (_, cpus)| all | cpus)
    }

    /// Whether no existing CPU is left unclaimed if VM number `vm` claims `cpus`.
    pub fn leaves_none(&self, vm: usize, cpus: u64, online: u64) -> bool {
        online & !(self.of_others(vm) | cpus) == 0
    }

    /// The CPU that takes the hypervisor's interrupts: an unclaimed one. `None` without claims, or if all CPUs are claimed.
    pub fn housekeeper(&self) -> Option<u8> {
        self.housekeeper
    }

    /// VM number `vm` claims CPUs.
    pub fn claim(&mut self, vm: usize, cpus: u64, online: u64) -> Change {
        let before = self.claimed();
        self.online = online;
        self.of[vm % VMS] |= cpus;
        self.change(self.claimed() & !before)
    }

    /// Releases the claims of VM number `vm`, which was destroyed.
    pub fn release(&mut self, vm: usize) -> Change {
        let before = self.claimed();
        self.of[vm % VMS] = 0;
        self.change(before & !self.claimed())
    }

    fn change(&mut self, cpus: u64) -> Change {
        let left = self.online & !self.claimed();
        let before = self.housekeeper;
        let stays = before.filter(|&cpu| left >> cpu & 1 != 0);
        self.housekeeper = stays.or((left != 0).then(|| left.trailing_zeros() as u8));
        Change { cpus, moved_to: self.housekeeper.filter(|_| self.housekeeper != before) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_is_gone_gives_its_cpus_back_unless_another_has_them() {
        let mut claims = Claims::<4>::new();
        assert_eq!(claims.claim(0, 0b0011, 0b1111), Change { cpus: 0b0011, moved_to: Some(2) });
        assert_eq!(claims.claim(1, 0b0110, 0b1111), Change { cpus: 0b0100, moved_to: Some(3) });
        assert_eq!((claims.of_others(0), claims.of_others(1), claims.of_others(2)), (0b0110, 0b0011, 0b0111));
        assert_eq!(claims.release(0), Change { cpus: 0b0001, moved_to: None });
        assert_eq!(claims.claimed(), 0b0110);
        assert_eq!(claims.release(0), Change { cpus: 0, moved_to: None });
        assert_eq!(claims.release(1), Change { cpus: 0b0110, moved_to: None });
        assert_eq!((claims.claimed(), claims.housekeeper()), (0, Some(3)));
    }

    #[test]
    fn a_claim_of_the_last_cpu_is_found() {
        let mut claims = Claims::<4>::new();
        assert!(!claims.leaves_none(0, 0b011, 0b111) && claims.leaves_none(0, 0b111, 0b111));
        claims.claim(0, 0b011, 0b111);
        assert_eq!([0b100, 0b110, 0b001].map(|cpus| claims.leaves_none(1, cpus, 0b111)), [true, true, false]);
        assert!(!claims.leaves_none(0, 0b100, 0b111), "its own claim");
        claims.release(0);
        assert!(!claims.leaves_none(1, 0b100, 0b111));
    }

    #[test]
    fn a_cpu_is_left_again_once_a_vm_is_gone() {
        let mut claims = Claims::<2>::new();
        claims.claim(0, 0b01, 0b11);
        assert_eq!(claims.claim(1, 0b10, 0b11), Change { cpus: 0b10, moved_to: None });
        assert_eq!(claims.housekeeper(), None);
        assert_eq!(claims.release(0), Change { cpus: 0b01, moved_to: Some(0) });
    }
}
