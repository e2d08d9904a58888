//! Affinities of vCPUs and of the CPUs that they run on. A guest that sends physical SGIs names their targets by the
//! affinities that it sees.

use stile_board::{CpuId, CpuSet, mpidr};

/// Whether each of a VM's vCPUs has one CPU only, with the same affinity. `cpus`: the CPUs of each vCPU;
/// `affinity`: that of a CPU, if it exists; `is_taken`: whether SGIs taken on a CPU are another VM's.
pub fn is_on_cpus_of_its_affinities(
    cpus: impl Iterator<Item = CpuSet>,
    affinity: impl Fn(usize) -> Option<u64>,
    is_taken: impl Fn(usize) -> bool,
) -> bool {
    cpus.enumerate()
        .all(|(vcpu, cpus)| cpus.only().map(CpuId::index).is_some_and(|cpu| affinity(cpu) == Some(mpidr(vcpu)) && !is_taken(cpu)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four CPUs of QEMU's `virt`, and of a board with two clusters of two.
    fn virt(cpu: usize) -> Option<u64> {
        (cpu < 4).then_some(cpu as u64)
    }

    fn clusters(cpu: usize) -> Option<u64> {
        [0, 1, 0x100, 0x101].get(cpu).copied()
    }

    fn nobody(_: usize) -> bool {
        false
    }

    #[test]
    fn each_vcpu_is_on_the_cpu_whose_affinity_it_has() {
        let accepted = |cpus: &[u64], affinity: fn(usize) -> Option<u64>| {
            is_on_cpus_of_its_affinities(cpus.iter().copied().map(CpuSet::from_bits), affinity, nobody)
        };
        assert!(accepted(&[1, 2], virt) && accepted(&[1, 2, 4, 8], virt) && accepted(&[1, 2], clusters));
        // On the next CPUs, the other way round, on any of two, on none, on one that is not there.
        for cpus in [&[2, 4][..], &[2, 1], &[1, 1], &[3, 2], &[3, 3], &[1, 0], &[1, 2, 4, 8, 16]] {
            assert!(!accepted(cpus, virt), "{cpus:?}");
        }
        // vCPU 2 has affinity 0.2, CPU 2 has 1.0.
        assert!(!accepted(&[1, 2, 4], clusters));
        // CPUs are found by their affinity, not by their number.
        assert!(accepted(&[2, 1], |cpu| [1, 0].get(cpu).copied()));
    }

    #[test]
    fn no_two_vms_have_the_same_cpu() {
        assert!(!is_on_cpus_of_its_affinities([1, 2].into_iter().map(CpuSet::from_bits), virt, |cpu| cpu == 1));
        assert!(is_on_cpus_of_its_affinities([1, 2].into_iter().map(CpuSet::from_bits), virt, |cpu| cpu == 2));
    }
}
