//! Tests of the scheduler: single rules, random operations on a simulated machine, and fairness
//! over time.

mod bar;
mod fairness;
mod hand_over;
mod kicks;
mod machine;
mod many;
mod races;
mod random;
mod rules;
mod shares;
mod storms;
mod threads;

use core::cell::Cell;

use crate::{CPUS, CpuId, CpuSet, Scheduler, VcpuId};

/// Distance of the tests' CPUs, which are numbered through: each of the first few is in another word of a set.
const STEP: usize = 85;
/// `STEP` times this is 1 modulo the number of CPUs.
const BACK: usize = 253;
const _: () = assert!(STEP * BACK % CPUS == 1);

std::thread_local! {
    /// Number of times that this thread looked at a CPU's load.
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a look at a CPU's load.
pub(crate) fn count_look() {
    LOOKS.set(LOOKS.get() + 1);
}

/// The result of an operation, and how many CPUs' loads it looked at.
fn looks_during<R>(operation: impl FnOnce() -> R) -> (R, usize) {
    let before = LOOKS.get();
    let result = operation();
    (result, LOOKS.get() - before)
}

fn cpu(number: usize) -> CpuId {
    CpuId::wrapping(number * STEP)
}

/// The tests' number of a CPU.
fn place(cpu: CpuId) -> usize {
    cpu.index() * BACK % CPUS
}

/// VMs of the tests have this many vCPUs, which are numbered through.
const VCPUS_OF_VM: usize = 8;

fn vcpu(number: usize) -> VcpuId {
    VcpuId::new((number / VCPUS_OF_VM) as u8, (number % VCPUS_OF_VM) as u8).expect("a vCPU's number")
}

fn number(vcpu: VcpuId) -> usize {
    usize::from(vcpu.vm()) * VCPUS_OF_VM + usize::from(vcpu.vcpu())
}

fn cpus(bits: u64) -> CpuSet {
    CpuSet::from_bits(bits).iter().map(|one| cpu(one.index())).collect()
}

impl Scheduler {
    fn idle(&self) -> CpuSet {
        self.lock_all().shared().idle(&self.online())
    }

    fn holding(&self) -> CpuSet {
        self.lock_all().shared().holding(&self.online())
    }

    fn affinity(&self, vcpu: VcpuId) -> CpuSet {
        self.lock_vcpu(vcpu).usable_by(vcpu)
    }

    /// Whether two schedulers are in the same state.
    fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (self.lock_all(), other.lock_all());
        let cpus = self.online().iter().all(|cpu| {
            let loads = [&one, &two].map(|of| (of.load_of(cpu).get(), of.load_of(cpu).present.get()));
            one[cpu] == two[cpu] && loads[0] == loads[1]
        });
        let vms = one.shared().vms().zip(two.shared().vms());
        let vms = { vms }.all(|(one, two)| one.active() == two.active() && one.account() == two.account());
        let vcpus = self.vcpus().all(|vcpu| one[vcpu] == two[vcpu] && one.home(vcpu) == two.home(vcpu));
        let all = self.online();
        cpus && vms && vcpus && one.policed() == two.policed() && one.shared().idle(&all) == two.shared().idle(&all)
    }
}
