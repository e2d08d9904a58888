//! Tests of the scheduler: single rules, random operations on a simulated machine, and fairness
//! over time.

mod bar;
mod fairness;
mod hand_over;
mod machine;
mod random;
mod rules;
mod shares;

use crate::{CpuId, CpuSet, VcpuId};

fn cpu(number: usize) -> CpuId {
    CpuId::new(number).expect("a CPU's number")
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
    CpuSet::from_bits(bits)
}
