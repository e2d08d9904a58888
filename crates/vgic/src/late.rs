//! Late SGIs: taken on a physical CPU after the direct vCPU that they were sent to has left it.
//!
//! A sender's write of ICC_SGI1R_EL1 is complete before the vCPU ceases to be direct, but the architecture does not say
//! when the SGI is pending at the other CPU. So SGIs that are found pending belong to the vCPU that was direct there
//! last, and another one becomes direct only after a while.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A vCPU: numbers of its VM and of the vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Number of the VM.
    pub vm: u8,
    /// Number in the VM.
    pub vcpu: u8,
}

impl Owner {
    const fn bits(self) -> u32 {
        (self.vm as u32) << 8 | self.vcpu as u32
    }

    const fn of(bits: u32) -> Self {
        Self { vm: (bits >> 8) as u8, vcpu: bits as u8 }
    }
}

/// No vCPU was direct here yet.
const NOBODY: u32 = u32::MAX;
/// The owner's VM has begun another life: SGIs are dropped.
const FORGOTTEN: u32 = 1 << 16;
/// Another CPU takes the owner's SGIs: nobody may become direct here.
const COLLECTED: u32 = 1 << 17;

/// Owner of the SGIs pending at a CPU. Written by that CPU, and by those that [forget](LateSgis::forget) a VM or
/// [collect](LateSgis::collect) its SGIs.
#[derive(Debug)]
pub struct LateSgis {
    owner: AtomicU32,
    /// Time at which it left, in ticks.
    left: AtomicU64,
}

impl LateSgis {
    /// No vCPU.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self { owner: AtomicU32::new(NOBODY), left: AtomicU64::new(0) }
    }

    /// The vCPU that was direct here last, and that SGIs which are pending here are for, if any.
    pub fn owner(&self) -> Option<Owner> {
        let owner = self.owner.load(Ordering::Relaxed);
        (owner != NOBODY && owner & FORGOTTEN == 0).then(|| Owner::of(owner))
    }

    /// Whether SGIs taken from now on belong to no other vCPU: none left this CPU less than `settle` ticks ago.
    pub fn may_become(&self, owner: Owner, now: u64, settle: u64) -> bool {
        let is_first = self.owner.load(Ordering::Relaxed) == NOBODY;
        is_first || self.owner() == Some(owner) || now.saturating_sub(self.left.load(Ordering::Relaxed)) >= settle
    }

    /// A vCPU becomes direct. What was pending has been taken. Returns false if another CPU is taking the SGIs of the one
    /// before: it would take this vCPU's, too.
    pub fn enter(&self, owner: Owner) -> bool {
        // Acquire: with the end of `collect`, which has cleared what was pending.
        let update = |before| (before == NOBODY || before & COLLECTED == 0).then_some(owner.bits());
        self.owner.fetch_update(Ordering::AcqRel, Ordering::Relaxed, update).is_ok()
    }

    /// The vCPU that is direct leaves.
    pub fn leave(&self, now: u64) {
        self.left.store(now, Ordering::Relaxed);
    }

    /// Takes the SGIs of a VM, none of whose vCPUs is loaded, by `take` if they are pending here. Meanwhile no vCPU becomes
    /// direct. `take` completes before it returns. Only one CPU collects those of a VM at a time.
    pub fn collect(&self, vm: u8, take: impl FnOnce(Owner)) {
        let update = |owner| (owner != NOBODY && owner & FORGOTTEN == 0 && Owner::of(owner).vm == vm).then_some(owner | COLLECTED);
        if let Ok(owner) = self.owner.fetch_update(Ordering::AcqRel, Ordering::Relaxed, update) {
            take(Owner::of(owner));
            self.owner.fetch_and(!COLLECTED, Ordering::Release);
        }
    }

    /// Handles the destruction or the reset of a VM: SGIs sent to it are dropped. Those of a vCPU that becomes direct
    /// meanwhile are not.
    pub fn forget(&self, vm: u8) {
        // The time is kept: other vCPUs wait for SGIs that may still arrive.
        let update = |owner| (owner != NOBODY && Owner::of(owner).vm == vm).then_some(owner | FORGOTTEN);
        let _ = self.owner.fetch_update(Ordering::AcqRel, Ordering::Relaxed, update);
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
                        assert!(late.enter(owner));
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
        assert!(late.enter(one));
        late.leave(100);
        assert_eq!([one, other].map(|owner| late.may_become(owner, 100 + SETTLE - 1, SETTLE)), [true, false]);
        assert!(late.may_become(other, 100 + SETTLE, SETTLE));
    }

    #[test]
    fn sgis_of_a_vm_that_is_gone_are_not_the_next_ones_with_its_number() {
        let late = LateSgis::new();
        let owner = Owner { vm: 3, vcpu: 0 };
        assert!(late.enter(owner));
        late.leave(100);
        late.forget(2);
        assert_eq!(late.owner(), Some(owner));
        late.forget(3);
        assert_eq!(late.owner(), None);
        assert!(!late.may_become(owner, 101, SETTLE), "SGIs may still arrive");
        assert!(late.enter(owner));
        assert_eq!(late.owner(), Some(owner), "in its next life");
    }

    #[test]
    fn nobody_becomes_direct_where_sgis_are_collected() {
        let late = LateSgis::new();
        let [one, other] = [3, 4].map(|vm| Owner { vm, vcpu: 255 });
        late.collect(3, |_| unreachable!("nobody was here"));
        assert!(late.enter(one));
        late.collect(4, |_| unreachable!("another VM was"));
        let mut collected = None;
        late.collect(3, |owner| {
            assert!(!late.enter(other) && late.owner() == Some(one));
            collected = Some(owner);
        });
        assert_eq!(collected, Some(one));
        assert!(late.enter(other));
        late.forget(3);
        assert_eq!(late.owner(), Some(other));
    }
}
