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

/// The translations of a VM before its VMID was forgotten.
const FORGOTTEN: usize = usize::MAX - 1;

/// The TLBs of all CPUs, and what each CPU has loaded.
struct Tlbs {
    owners: [Option<usize>; LAST_VMID as usize + 1],
    /// VMID in VTTBR_EL2, and the VM that translations with it belong to.
    loaded: [Option<(u16, usize)>; CPUS],
    /// The VM whose table is in VTTBR_EL2.
    tables: [Option<usize>; CPUS],
}

impl Tlbs {
    fn new() -> Self {
        Self { owners: [None; LAST_VMID as usize + 1], loaded: [None; CPUS], tables: [None; CPUS] }
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
        self.tables[cpu] = Some(vm);
    }

    /// VTTBR_EL2 has VMID 0 and no table.
    fn unload(&mut self, cpu: usize) {
        self.loaded[cpu] = None;
        self.tables[cpu] = None;
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

    /// CPU 0 still has VM 0's table in VTTBR_EL2, with a VMID that the VM has had before.
    fn forget(&self) {
        self.load(0, (0, false));
        self.slots[0].forget();
        let mut tlbs = self.tlbs.lock().unwrap();
        tlbs.owners.iter_mut().filter(|owner| **owner == Some(0)).for_each(|owner| *owner = Some(FORGOTTEN));
        tlbs.loaded[0].iter_mut().for_each(|(_, vm)| *vm = FORGOTTEN);
    }

    /// As `Vm::load_second_stage`.
    fn load(&self, cpu: usize, (vm, put): Load) {
        let slot = &self.slots[vm];
        let has_table = !put && self.tlbs.lock().unwrap().tables[cpu] == Some(vm);
        if let Some(vmid) = has_table.then(|| self.vmids.kept(cpu, slot)).flatten() {
            return self.tlbs.lock().unwrap().load(cpu, vmid, vm);
        }
        self.tlbs.lock().unwrap().unload(cpu);
        if put {
            self.vmids.put(cpu);
        }
        let vmid = self.vmids.try_load(cpu, slot).unwrap_or_else(|| {
            let mut pool = self.pool.lock().unwrap();
            self.vmids.load(&mut pool, cpu, slot, || self.tlbs.lock().unwrap().flush())
        });
        self.tlbs.lock().unwrap().load(cpu, vmid, vm);
    }
}

/// Runs one list of loads on each CPU concurrently.
fn explore(before: &'static [usize], left: usize, loads: [&'static [Load]; CPUS]) {
    explore_from(before, left, |_| (), loads);
}

fn explore_from(before: &'static [usize], left: usize, prepare: fn(&System), loads: [&'static [Load]; CPUS]) {
    let mut builder = Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let system = Arc::new(System::new(before, left));
        prepare(&system);
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

/// A VMID that the CPU before has given up must not be in VTTBR_EL2 once another is recorded as loaded.
#[test]
fn vm_that_has_another_vmid_now() {
    explore_from(&[0], 1, System::forget, [&[(0, false)], &[(0, true), (2, true)]]);
}
