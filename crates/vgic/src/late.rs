//! Late SGIs: taken on a physical CPU after the direct vCPU that they were sent to has left it.
//!
//! A sender's write of ICC_SGI1R_EL1 is complete before the vCPU ceases to be direct, but the architecture does not say
//! when the SGI is pending at the other CPU. So SGIs that are found pending belong to the vCPU that was direct there
//! last, and another one becomes direct only after a while.

use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// A vCPU: numbers of its VM and of the vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Number of the VM.
    pub vm: u8,
    /// Number in the VM.
    pub vcpu: u8,
}

const NOBODY: u16 = u16::MAX;

/// Owner of the SGIs pending at a CPU. Written by that CPU, and by the one that [forgets](LateSgis::forget) a VM.
#[derive(Debug)]
pub struct LateSgis {
    owner: AtomicU16,
    /// When it left, in ticks.
    left: AtomicU64,
}

impl LateSgis {
    /// No vCPU.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self { owner: AtomicU16::new(NOBODY), left: AtomicU64::new(0) }
    }

    /// The vCPU that was direct here last.
    pub fn owner(&self) -> Option<Owner> {
        let owner = self.owner.load(Ordering::Relaxed);
        let [vm, vcpu] = owner.to_be_bytes();
        (owner != NOBODY).then_some(Owner { vm, vcpu })
    }

    /// Whether SGIs taken from now on belong to no other vCPU: none left this CPU less than `settle` ticks ago.
    pub fn may_become(&self, owner: Owner, now: u64, settle: u64) -> bool {
        self.owner().is_none_or(|last| last == owner || now.saturating_sub(self.left.load(Ordering::Relaxed)) >= settle)
    }

    /// A vCPU becomes direct. What was pending has been taken.
    pub fn enter(&self, owner: Owner) {
        self.owner.store(u16::from_be_bytes([owner.vm, owner.vcpu]), Ordering::Relaxed);
    }

    /// The vCPU that is direct leaves.
    pub fn leave(&self, now: u64) {
        self.left.store(now, Ordering::Relaxed);
    }

    /// Handles the destruction of a VM: SGIs sent to it are dropped.
    pub fn forget(&self, vm: u8) {
        if self.owner().is_some_and(|owner| owner.vm == vm) {
            // The time is kept: other vCPUs wait for SGIs that may still arrive.
            self.owner.store(u16::from_be_bytes([vm, u8::MAX]), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const SETTLE: u64 = 10;

    /// An SGI on its way to the CPU.
    struct Sent {
        to: Owner,
        arrives: u64,
    }

    /// Random vCPUs of three VMs take turns on one CPU, and receive SGIs up to [`SETTLE`] after they were sent: each
    /// reaches only the vCPU that it was sent to.
    #[test]
    fn no_sgi_reaches_another_vcpu() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let late = LateSgis::new();
        let (mut under_way, mut direct, mut taken, mut kept_out) = (Vec::<Sent>::new(), None::<Owner>, 0, 0);
        for now in 0..100_000 {
            let (arrived, rest): (Vec<_>, Vec<_>) = under_way.drain(..).partition(|sent| sent.arrives <= now);
            under_way = rest;
            for sent in arrived {
                // Pending at the CPU: its guest's, or taken before another becomes direct.
                let reached = direct.or_else(|| late.owner());
                assert_eq!(reached, Some(sent.to));
                taken += 1;
            }
            match direct {
                Some(owner) if random(4) == 0 => under_way.push(Sent { to: owner, arrives: now + 1 + random(SETTLE - 1) }),
                Some(_) if random(20) == 0 => {
                    late.leave(now);
                    direct = None;
                }
                None => {
                    let owner = Owner { vm: random(3) as u8, vcpu: random(2) as u8 };
                    if late.may_become(owner, now, SETTLE) {
                        late.enter(owner);
                        direct = Some(owner);
                    } else {
                        kept_out += 1;
                    }
                }
                Some(_) => {}
            }
        }
        assert!(taken > 10_000 && kept_out > 1_000, "{taken} {kept_out}");
    }

    #[test]
    fn a_vcpu_that_was_here_last_need_not_wait() {
        let late = LateSgis::new();
        let [one, other] = [0, 1].map(|vcpu| Owner { vm: 3, vcpu });
        assert!(late.may_become(one, 0, SETTLE));
        late.enter(one);
        late.leave(100);
        assert_eq!([one, other].map(|owner| late.may_become(owner, 100 + SETTLE - 1, SETTLE)), [true, false]);
        assert!(late.may_become(other, 100 + SETTLE, SETTLE));
    }

    #[test]
    fn sgis_of_a_vm_that_is_gone_are_not_the_next_ones_with_its_number() {
        let late = LateSgis::new();
        let owner = Owner { vm: 3, vcpu: 0 };
        late.enter(owner);
        late.leave(100);
        late.forget(2);
        assert_eq!(late.owner(), Some(owner));
        late.forget(3);
        assert_ne!(late.owner(), Some(owner));
        assert!(!late.may_become(owner, 101, SETTLE));
    }
}
