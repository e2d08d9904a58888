//! VMIDs against a TLB model that retains every translation until it is flushed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use stile_paging::vmid::{VmidBits, VmidPool, VmidSlot, Vmids};

/// The TLBs of all CPUs, and the VMID that each CPU has loaded.
struct Tlbs<const CPUS: usize> {
    owners: BTreeMap<u16, usize>,
    loaded: [Option<(u16, usize)>; CPUS],
    flushes: usize,
}

impl<const CPUS: usize> Tlbs<CPUS> {
    fn new() -> Self {
        Self { owners: BTreeMap::new(), loaded: [None; CPUS], flushes: 0 }
    }

    /// Loaded VMIDs allocate new entries immediately.
    fn flush(&mut self) {
        self.owners = self.loaded.into_iter().flatten().collect();
        self.flushes += 1;
    }

    fn load(&mut self, cpu: usize, vmid: u16, vm: usize) {
        assert_ne!(vmid, 0, "the host's");
        let owner = *self.owners.entry(vmid).or_insert(vm);
        assert_eq!(owner, vm, "VMID {vmid} is still another VM's");
        for &(other, other_vm) in self.loaded.iter().flatten() {
            assert_eq!(other == vmid, other_vm == vm, "a VM has one VMID on all CPUs");
        }
        self.loaded[cpu] = Some((vmid, vm));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Load { cpu: usize, vm: usize },
    Put { cpu: usize },
    Forget { vm: usize },
}

const CPUS: usize = 4;
const VMS: usize = 300;

fn step() -> impl Strategy<Value = Step> {
    // Some VMs are loaded more often.
    let vm = prop_oneof![0..6usize, 0..VMS, 0..VMS];
    prop_oneof![
        8 => (0..CPUS, vm.clone()).prop_map(|(cpu, vm)| Step::Load { cpu, vm }),
        2 => (0..CPUS).prop_map(|cpu| Step::Put { cpu }),
        1 => vm.prop_map(|vm| Step::Forget { vm }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        rng_seed: RngSeed::Fixed(0x5711e),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_vmid_is_shared_between_vms(steps in proptest::collection::vec(step(), 1..3000)) {
        let vmids = Vmids::<CPUS>::new();
        let mut pool = VmidPool::new(VmidBits::Eight);
        let slots: Vec<_> = (0..VMS).map(|_| VmidSlot::new()).collect();
        let mut tlbs = Tlbs::<CPUS>::new();
        let mut renewals = 0;
        for step in steps {
            match step {
                Step::Load { cpu, vm } => {
                    // The previous VMID is no longer loaded while the new one is assigned, but its TLB
                    // entries may be allocated until the end.
                    let vmid = vmids.try_load(cpu, &slots[vm]).unwrap_or_else(|| {
                        renewals += 1;
                        vmids.load(&mut pool, cpu, &slots[vm], || tlbs.flush())
                    });
                    tlbs.loaded[cpu] = None;
                    tlbs.load(cpu, vmid, vm);
                }
                Step::Put { cpu } => {
                    tlbs.loaded[cpu] = None;
                    vmids.put(cpu);
                }
                Step::Forget { vm } => {
                    if !tlbs.loaded.iter().flatten().any(|&(_, loaded)| loaded == vm) {
                        slots[vm].forget();
                        // No VM may load this VMID again before a flush.
                        for owner in tlbs.owners.values_mut().filter(|owner| **owner == vm) {
                            *owner = usize::MAX;
                        }
                    }
                }
            }
        }
        // Flushes are rare: each follows the assignment of nearly all VMIDs.
        prop_assert!(tlbs.flushes * (255 - CPUS) <= renewals);
    }
}

/// Loads on `cpu`. Returns the VMID, and whether a new generation began.
fn load<const N: usize>(vmids: &Vmids<N>, pool: &mut VmidPool<N>, cpu: usize, slot: &VmidSlot) -> (u16, bool) {
    let mut flushed = false;
    let vmid = vmids.load(pool, cpu, slot, || flushed = true);
    (vmid, flushed)
}

/// Loads new VMs on `cpu` until a new generation begins.
fn begin_generation<const N: usize>(vmids: &Vmids<N>, pool: &mut VmidPool<N>, cpu: usize) {
    while !load(vmids, pool, cpu, &VmidSlot::new()).1 {}
}

#[test]
fn generation_assigns_all_vmids() {
    for (bits, count) in [(VmidBits::Eight, 255), (VmidBits::Sixteen, 65535)] {
        let vmids = Vmids::<2>::new();
        let mut pool = VmidPool::new(bits);
        for expected in 1..=count {
            assert_eq!(load(&vmids, &mut pool, 0, &VmidSlot::new()), (expected, false));
        }
        // The last VMID is still loaded, and is skipped from now on.
        for expected in 1..count {
            let is_first = expected == 1;
            assert_eq!(load(&vmids, &mut pool, 1, &VmidSlot::new()), (expected, is_first));
        }
        assert_eq!(load(&vmids, &mut pool, 1, &VmidSlot::new()), (1, true));
    }
}

#[test]
fn loaded_vm_keeps_its_vmid_across_generations() {
    let vmids = Vmids::<2>::new();
    let mut pool = VmidPool::new(VmidBits::Eight);
    let stays = VmidSlot::new();
    let (vmid, _) = load(&vmids, &mut pool, 0, &stays);
    for _ in 0..5 {
        begin_generation(&vmids, &mut pool, 1);
    }
    // A new generation has begun: `try_load` must fail, and `load` keeps the VMID.
    assert_eq!(vmids.try_load(0, &stays), None);
    assert_eq!(load(&vmids, &mut pool, 1, &stays), (vmid, false));
    assert_eq!(vmids.try_load(1, &stays), Some(vmid));
    assert_eq!(vmids.try_load(2, &stays), None, "CPU 2 is out of range");
}

#[test]
fn each_cpu_observes_a_new_generation() {
    let vmids = Vmids::<2>::new();
    let mut pool = VmidPool::new(VmidBits::Eight);
    let slot = VmidSlot::new();
    load(&vmids, &mut pool, 0, &VmidSlot::new());
    begin_generation(&vmids, &mut pool, 1);
    let vmid = load(&vmids, &mut pool, 1, &slot).0;
    assert_eq!(vmids.try_load(1, &slot), Some(vmid));
    // The VM's VMID is current, but this CPU's slot holds NONE: a lockless load could be missed by the next
    // new generation.
    assert_eq!(vmids.try_load(0, &slot), None);
    assert_eq!(load(&vmids, &mut pool, 0, &slot).0, vmid);
    assert_eq!(vmids.try_load(0, &slot), Some(vmid));
}

#[test]
fn vmid_is_carried_over_for_each_cpu_that_loaded_it() {
    let vmids = Vmids::<3>::new();
    let mut pool = VmidPool::new(VmidBits::Eight);
    let slot = VmidSlot::new();
    let vmid = load(&vmids, &mut pool, 0, &slot).0;
    load(&vmids, &mut pool, 1, &slot);
    begin_generation(&vmids, &mut pool, 2);
    assert_eq!(load(&vmids, &mut pool, 2, &slot).0, vmid);
    // Only CPU 1 still holds it, from before the last generation.
    vmids.put(0);
    vmids.put(2);
    begin_generation(&vmids, &mut pool, 2);
    assert_eq!(load(&vmids, &mut pool, 2, &slot).0, vmid);
}

/// Tests the property with threads, for races between the steps.
#[test]
fn no_vmid_is_shared_among_threads() {
    let vmids = Vmids::<CPUS>::new();
    let pool = Mutex::new(VmidPool::new(VmidBits::Eight));
    let slots: Vec<_> = (0..VMS).map(|_| VmidSlot::new()).collect();
    let tlbs = Mutex::new(Tlbs::<CPUS>::new());
    thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (vmids, pool, slots, tlbs) = (&vmids, &pool, &slots, &tlbs);
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(cpu as u64 + 1);
                for _ in 0..20_000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let vms = if random >> 62 == 0 { VMS } else { 5 };
                    let vm = (random >> 8) as usize % vms;
                    tlbs.lock().unwrap().loaded[cpu] = None;
                    vmids.put(cpu);
                    let vmid = vmids.try_load(cpu, &slots[vm]).unwrap_or_else(|| {
                        let mut pool = pool.lock().unwrap();
                        vmids.load(&mut pool, cpu, &slots[vm], || tlbs.lock().unwrap().flush())
                    });
                    tlbs.lock().unwrap().load(cpu, vmid, vm);
                }
            });
        }
    });
    assert!(tlbs.into_inner().unwrap().flushes > 0);
}
