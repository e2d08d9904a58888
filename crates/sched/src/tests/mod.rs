//! Tests of the scheduler: single rules, random operations on a simulated machine, and fairness
//! over time.

mod bar;
mod fairness;
mod machine;
mod random;
mod rules;
mod shares;

use crate::{CpuId, CpuSet, VcpuId};

fn cpu(number: usize) -> CpuId {
    CpuId::new(number).expect("a CPU's number")
}

fn vcpu(index: usize) -> VcpuId {
    VcpuId::from_index(index).expect("a vCPU's index")
}

fn cpus(bits: u64) -> CpuSet {
    CpuSet::from_bits(bits)
}
