//! The machine that a Stile guest sees: memory map, interrupt numbers and limits.
//!
//! The map is that of QEMU's `virt` machine, on which every relevant guest kernel boots. These
//! numbers are defined nowhere else: the hypervisor emulates them, and the command `stile` writes
//! them into the guest's device tree.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod cpus;
pub mod footprint;
pub mod intid;
mod limits;
pub mod map;
pub mod memory_disks;
pub mod pc;

pub use cpus::{CpuId, CpuSet};
pub use limits::*;

/// Returns the affinity fields of `MPIDR_EL1` of virtual CPU `vcpu`: Aff0 is its number in its cluster of [`CLUSTER`], Aff1 the cluster's,
/// Aff2 and Aff3 are 0.
///
/// The value is also the `reg` of the CPU's node in the device tree, and the target of PSCI's `CPU_ON`. It
/// excludes the bits that are not affinity (`U`, `MT`, and bit 31, which reads as one).
#[inline]
pub const fn mpidr(vcpu: usize) -> u64 {
    (vcpu % CLUSTER) as u64 | ((vcpu / CLUSTER) as u64) << 8
}

/// Returns the virtual CPU with this affinity, if a virtual machine with `vcpus` CPUs has it.
///
/// `affinity` is guest input: `CPU_ON`'s target, or the value of a `GICD_IROUTER`. Every bit outside Aff0 and Aff1 must be zero.
#[inline]
pub const fn vcpu_of_mpidr(affinity: u64, vcpus: usize) -> Option<usize> {
    let (cluster, number) = (affinity >> 8, affinity & 0xff);
    if number >= CLUSTER as u64 || cluster >= (MAX_VCPUS / CLUSTER) as u64 {
        return None;
    }
    let vcpu = cluster as usize * CLUSTER + number as usize;
    if vcpu < vcpus && vcpu < MAX_VCPUS { Some(vcpu) } else { None }
}

/// Returns the regions of the redistributors of a virtual machine with `vcpus` CPUs: the address of each, and its first
/// virtual CPU and the one after its last. The second is empty if the first has room for all. In a region, each
/// redistributor follows the one before without a gap: its `RD_base` frame, then its `SGI_base` frame.
pub const fn redistributors(vcpus: usize) -> [(u64, core::ops::Range<usize>); 2] {
    let first = if vcpus < map::GICR_FIRST { vcpus } else { map::GICR_FIRST };
    [(map::GICR_BASE, 0..first), (map::GICR_HIGH_BASE, first..vcpus)]
}

/// Whether the redistributor of virtual CPU `vcpu`, of `vcpus`, is the last one of its region (GICR_TYPER.Last).
pub const fn is_last_redistributor(vcpu: usize, vcpus: usize) -> bool {
    vcpu + 1 == vcpus || vcpu + 1 == map::GICR_FIRST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpidr_round_trip() {
        for vcpu in 0..MAX_VCPUS {
            assert_eq!(vcpu_of_mpidr(mpidr(vcpu), MAX_VCPUS), Some(vcpu));
            assert_eq!(vcpu_of_mpidr(mpidr(vcpu), vcpu), None);
        }
        assert_eq!((mpidr(15), mpidr(16), mpidr(37)), (0xf, 0x100, 0x205));
        assert_eq!(vcpu_of_mpidr(CLUSTER as u64, MAX_VCPUS), None);
        assert_eq!(vcpu_of_mpidr(0x100, CLUSTER), None);
        assert_eq!(vcpu_of_mpidr(0x1_0000, MAX_VCPUS), None);
        assert_eq!(vcpu_of_mpidr(((MAX_VCPUS / CLUSTER) as u64) << 8, usize::MAX), None);
        assert_eq!(vcpu_of_mpidr(u64::MAX, MAX_VCPUS), None);
        assert_eq!((mpidr(255), vcpu_of_mpidr(0xf0f, 256)), (0xf0f, Some(255)));
    }

    #[test]
    fn each_vcpu_has_a_redistributor_in_one_region() {
        for vcpus in 1..=MAX_VCPUS {
            let [(_, low), (_, high)] = redistributors(vcpus);
            assert!(low.clone().chain(high.clone()).eq(0..vcpus));
            let last = (0..vcpus).filter(|&vcpu| is_last_redistributor(vcpu, vcpus));
            assert!(last.eq([low, high].into_iter().filter(|region| !region.is_empty()).map(|region| region.end - 1)));
        }
    }
}
