//! Snapshots of VMs.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Arch;
use crate::arch::contract::Snapshots;
use crate::vm;
use crate::wall_clock;

/// vCPUs that were prepared for snapshots.
pub static PREPARED: AtomicUsize = AtomicUsize::new(0);
/// Ticks by which clocks of restored VMs were advanced.
pub static ADVANCED: AtomicU64 = AtomicU64::new(0);

/// A part for each vCPU: its register, and whether it is on.
impl Snapshots for Arch {
    const PREPARES: bool = true;

    fn obstacle(vm: &vm::Vm) -> Option<&'static str> {
        (vm.name == "three").then_some("this VM can't be saved")
    }

    fn parts(vm: &vm::Vm) -> usize {
        vm.vcpus.len()
    }

    fn prepare(vm: &'static vm::Vm, vcpus: Range<usize>) {
        assert!(vcpus.len() <= 8 && vcpus.end <= vm.vcpus.len());
        PREPARED.fetch_add(vcpus.len(), Ordering::Relaxed);
    }

    fn save(vm: &'static vm::Vm, part: usize, since: u64, to: &mut [u8]) -> Option<usize> {
        let vcpu = &vm.vcpus.get(part)?.arch;
        assert_eq!(*vcpu.loaded.lock().unwrap(), None, "a vCPU of a paused VM is loaded");
        stile_snapshot::encode(&(vcpu.saved.load(Ordering::Relaxed), Self::is_on(vm, part), wall_clock::nanoseconds_at(since)), to)
    }

    fn restore(vm: &'static vm::Vm, part: usize, _since: u64, from: &[u8]) -> Result<(), &'static str> {
        let vcpu = vm.vcpus.get(part).ok_or("no such vCPU")?;
        let (register, on, time): (u64, bool, u64) = stile_snapshot::decode(from).ok_or("no record")?;
        vm.power.set_saved_at(time);
        vcpu.arch.saved.store(register, Ordering::Relaxed);
        let mut states = vm.arch.on.lock().unwrap();
        if on {
            states.insert(part)
        } else {
            states.remove(&part)
        };
        Ok(())
    }

    fn advance(_vm: &'static vm::Vm, ticks: u64) {
        ADVANCED.fetch_add(ticks, Ordering::Relaxed);
    }

    fn complete(_vm: &'static vm::Vm) {}

    fn is_on(vm: &vm::Vm, vcpu: usize) -> bool {
        vm.arch.on.lock().unwrap().contains(&vcpu)
    }
}
