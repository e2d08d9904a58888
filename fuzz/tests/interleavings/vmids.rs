//! Loads on two CPUs around the beginning of a generation of VMIDs.

use std::sync::Arc;

use loom::model::Builder;
use loom::sync::Mutex;
use loom::thread;

mod vmid {
    include!(concat!(env!("OUT_DIR"), "/vmid.rs"));
}

use vmid::{VmidBits, VmidPool, VmidSlot, Vmids};

/// The greatest VMID: few run out sooner.
const LAST_VMID: u16 = 15;

const CPUS: usize = 2;
const VMS: usize = 4;

/// The TLBs of all CPUs, and the VMID that each CPU has loaded.
struct Tlbs {
    owners: [Option<usize>; LAST_VMID as usize + 1],
    loaded: [Option<(u16, usize)>; CPUS],
}

impl Tlbs {
    fn new() -> Self {
        Self { owners: [None; LAST_VMID as usize + 1], loaded: [None; CPUS] }
    }

    /// Loaded VMIDs allocate new entries immediately.
    fn flush(&mut self) {
        self.owners = [None; LAST_VMID as usize + 1];
        for (vmid, vm) in self.loaded.into_iter().flatten() {
            self.owners[usize::from(vmid)] = Some(vm);
        }
    }

    fn load(&mut self, cpu: usize, vmid: u16, vm: usize) {
        let owner = *self.owners[usize::from(vmid)].get_or_insert(vm);
        assert_eq!(owner, vm, "VMID {vmid} is still another VM's");
        for (other, other_vm) in self.loaded.into_iter().flatten() {
            assert_eq!(other == vmid, other_vm == vm, "a VM has one VMID on all CPUs");
        }
        self.loaded[cpu] = Some((vmid, vm));
    }
}

struct System {
    vmids: Vmids<CPUS>,
    pool: Mutex<VmidPool<CPUS>>,
    slots: [VmidSlot; VMS],
    tlbs: Mutex<Tlbs>,
}

/// A VM to load, and whether the previous one is put first.
type Load = (usize, bool);

impl System {
    /// The VMs in `before` hold the first VMIDs; all other VMIDs but `left` are used up.
    fn new(before: &[usize], left: usize) -> Self {
        let vmids = Vmids::new();
        let mut pool = VmidPool::new(VmidBits::Eight);
        let mut tlbs = Tlbs::new();
        let slots = [(); VMS].map(|()| VmidSlot::default());
        let mut load = |cpu: usize, vm: usize, slot: &VmidSlot| {
            let vmid = vmids.load(&mut pool, cpu, slot, || unreachable!("there are VMIDs left"));
            tlbs.owners[usize::from(vmid)] = Some(vm);
            vmids.put(cpu);
        };
        before.iter().for_each(|&vm| load(0, vm, &slots[vm]));
        for n in 0..usize::from(LAST_VMID) - before.len() - left {
            load(n % CPUS, usize::MAX, &VmidSlot::default());
        }
        Self { vmids, pool: Mutex::new(pool), slots, tlbs: Mutex::new(tlbs) }
    }

    fn load(&self, cpu: usize, (vm, put): Load) {
        self.tlbs.lock().unwrap().loaded[cpu] = None;
        if put {
            self.vmids.put(cpu);
        }
        let slot = &self.slots[vm];
        let vmid = self.vmids.try_load(cpu, slot).unwrap_or_else(|| {
            let mut pool = self.pool.lock().unwrap();
            self.vmids.load(&mut pool, cpu, slot, || self.tlbs.lock().unwrap().flush())
        });
        self.tlbs.lock().unwrap().load(cpu, vmid, vm);
    }
}

/// Runs one list of loads on each CPU concurrently.
fn explore(before: &'static [usize], left: usize, loads: [&'static [Load]; CPUS]) {
    let mut builder = Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let system = Arc::new(System::new(before, left));
        let other = Arc::clone(&system);
        let thread = thread::spawn(move || loads[1].iter().for_each(|&load| other.load(1, load)));
        loads[0].iter().for_each(|&load| system.load(0, load));
        thread.join().unwrap();
    });
}

#[test]
fn loaded_vm_is_carried_over() {
    explore(&[0, 1], 1, [&[(2, false), (3, false)], &[(1, false), (0, false)]]);
}

#[test]
fn put_does_not_mask_a_new_generation() {
    explore(&[0, 1], 1, [&[(2, true), (3, true)], &[(1, true), (0, true)]]);
}

#[test]
fn new_vmid_is_used_only_after_the_flush() {
    explore(&[0], 0, [&[(3, true)], &[(3, true)]]);
}

#[test]
fn vm_on_both_cpus() {
    explore(&[0, 1], 0, [&[(0, true), (3, true)], &[(0, true), (2, false)]]);
}

#[test]
fn vm_that_is_loaded_again_keeps_its_vmid() {
    explore(&[0, 1], 0, [&[(0, false), (0, false)], &[(2, false), (0, false)]]);
}
