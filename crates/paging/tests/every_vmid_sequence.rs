//! Every sequence of a few loads, puts and forgets around the beginning of a generation, against TLBs that remember each translation until
//! they are flushed. (`vmid_interleavings.rs` interleaves the steps of single loads.)

use stile_paging::vmid::{VmidBits, VmidPool, VmidSlot, Vmids};

/// CPUs that load and put. One more uses up VMIDs.
const CPUS: usize = 2;
const SPENDER: usize = CPUS;
const VMS: usize = 3;
/// VMIDs of a generation: 0 is the host's.
const VMIDS: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Load(usize, usize),
    Put(usize),
    Forget(usize),
    /// Another VM is loaded for a moment.
    Spend,
}

/// Owners of TLB entries, and VMIDs that CPUs have loaded.
struct Machine {
    vmids: Vmids<{ CPUS + 1 }>,
    pool: VmidPool<{ CPUS + 1 }>,
    slots: [VmidSlot; VMS],
    /// By VMID: a VM, or `OTHER`.
    owners: [Option<usize>; VMIDS + 1],
    loaded: [Option<(u16, usize)>; CPUS],
    flushes: usize,
}

/// A VM that is loaded once.
const OTHER: usize = usize::MAX;

impl Machine {
    /// With this many VMIDs left in the first generation.
    fn new(left: usize) -> Self {
        let mut machine = Self {
            vmids: Vmids::new(),
            pool: VmidPool::new(VmidBits::Eight),
            slots: [const { VmidSlot::new() }; VMS],
            owners: [None; VMIDS + 1],
            loaded: [None; CPUS],
            flushes: 0,
        };
        (0..VMIDS - left).for_each(|_| machine.apply(Step::Spend));
        assert_eq!(machine.flushes, 0);
        machine
    }

    fn load(&mut self, cpu: usize, slot: &VmidSlot) -> u16 {
        let Self { vmids, pool, owners, loaded, flushes, .. } = self;
        vmids.try_load(cpu, slot).unwrap_or_else(|| {
            vmids.load(pool, cpu, slot, || {
                *flushes += 1;
                *owners = [None; VMIDS + 1];
                // A vCPU with a loaded VMID allocates TLB entries immediately.
                loaded.iter().flatten().for_each(|&(vmid, vm)| owners[usize::from(vmid)] = Some(vm));
            })
        })
    }

    fn own(&mut self, vmid: u16, vm: usize) {
        assert_ne!(vmid, 0, "the host's");
        let owner = *self.owners[usize::from(vmid)].get_or_insert(vm);
        assert!(owner == vm && vm != OTHER || owner == OTHER && vm == OTHER, "VMID {vmid} of {owner} goes to {vm}");
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Load(cpu, vm) => {
                // Until the new VMID is there, the CPU may make entries for the old one; but not for another VM.
                let slots = std::mem::take(&mut self.slots);
                let vmid = self.load(cpu, &slots[vm]);
                self.slots = slots;
                self.loaded[cpu] = None;
                self.own(vmid, vm);
                for &(other, other_vm) in self.loaded.iter().flatten() {
                    assert_eq!(other == vmid, other_vm == vm, "a VM has one VMID on all CPUs");
                }
                self.loaded[cpu] = Some((vmid, vm));
            }
            Step::Put(cpu) => {
                self.loaded[cpu] = None;
                self.vmids.put(cpu);
            }
            Step::Forget(vm) => {
                self.slots[vm].forget();
                // Its entries stay in the TLBs, so its VMID must not be reused before a flush.
                self.owners.iter_mut().filter(|owner| **owner == Some(vm)).for_each(|owner| *owner = Some(OTHER));
            }
            Step::Spend => {
                let vmid = self.load(SPENDER, &VmidSlot::new());
                assert!(self.owners[usize::from(vmid)].is_none() && vmid != 0, "VMID {vmid} is not free");
                self.owners[usize::from(vmid)] = Some(OTHER);
                self.vmids.put(SPENDER);
            }
        }
    }
}

/// The steps that may follow. VMs and CPUs are interchangeable, so the first ones are used first.
fn next(before: &[Step]) -> Vec<Step> {
    let vms = before.iter().filter_map(|step| if let Step::Load(_, vm) = step { Some(vm + 1) } else { None }).max().unwrap_or(0);
    let cpus = before.iter().filter_map(|step| if let Step::Load(cpu, _) = step { Some(cpu + 1) } else { None }).max().unwrap_or(0);
    let is_loaded = |vm: usize| {
        (0..CPUS).any(|cpu| {
            let last = before.iter().rev().find(|step| matches!(step, Step::Load(c, _) | Step::Put(c) if *c == cpu));
            last.is_some_and(|step| *step == Step::Load(cpu, vm))
        })
    };
    let loads = (0..CPUS.min(cpus + 1)).flat_map(|cpu| (0..VMS.min(vms + 1)).map(move |vm| Step::Load(cpu, vm)));
    let puts = (0..cpus).map(Step::Put);
    let forgets = (0..vms).filter(|&vm| !is_loaded(vm)).map(Step::Forget);
    loads.chain(puts).chain(forgets).chain([Step::Spend]).collect()
}

/// Runs every sequence of `length` steps that begins with `steps`. Returns how many there are, and how many flushes they took.
fn explore(steps: &mut Vec<Step>, length: usize, left: usize) -> (usize, usize) {
    if steps.len() == length {
        let mut machine = Machine::new(left);
        steps.iter().for_each(|&step| machine.apply(step));
        return (1, machine.flushes);
    }
    let mut total = (0, 0);
    for step in next(steps) {
        steps.push(step);
        let (sequences, flushes) = explore(steps, length, left);
        total = (total.0 + sequences, total.1 + flushes);
        steps.pop();
    }
    total
}

#[test]
fn no_sequence_shares_a_vmid() {
    for left in 0..4 {
        let (sequences, flushes) = explore(&mut Vec::new(), 5, left);
        assert!(sequences > 1000 && flushes > 0, "{left} left: {sequences} sequences, {flushes} flushes");
    }
}
