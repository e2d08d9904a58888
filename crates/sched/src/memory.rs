//! The parts of a [`Scheduler`]'s memory, as ranges of bytes from its start. A scheduler that is zero needs memory only for
//! the CPUs that a machine has, as [`Scheduler::setup`] was told, and for vCPUs that are configured.

use core::mem::offset_of;
use core::ops::Range;

use crate::shared::{Load, Shared};
use crate::table::Table;
use crate::{CPUS, CpuId, Scheduler, VcpuId};

/// A range of bytes from the start of a [`Scheduler`].
pub type Part = Range<usize>;

/// Bytes for each CPU: its queue, its load and its lock.
pub const CPU: usize = length(&of_cpu(CpuId::BOOT)) + size_of::<Load>() + length(&Table::of_locks(0..1));
/// Bytes for each vCPU.
pub const VCPU: usize = {
    let [one, two, homes] = Table::of_items(0..1);
    length(&one) + length(&two) + length(&homes)
};
/// Bytes in any case: what the scheduler keeps for each VM that there may be, and sets of CPUs.
pub const BASE: usize = size_of::<Shared>() - CPUS * size_of::<Load>();

const fn length(part: &Part) -> usize {
    part.end - part.start
}

const fn offset(part: &Part, by: usize) -> Part {
    part.start + by..part.end + by
}

/// The memory of a machine of `cpus` CPUs without [their own](of_cpu).
pub const fn of_machine(cpus: usize) -> [Part; 5] {
    let table = offset_of!(Scheduler, table);
    let [shared, used] = Table::of_all();
    let loads = offset(&Shared::of_loads(CPUS), shared.start);
    [
        offset(&(shared.start..loads.start), table),
        offset(&Shared::of_loads(cpus), table + shared.start),
        offset(&(loads.end..shared.end), table),
        offset(&used, table),
        offset(&Table::of_locks(0..cpus), table),
    ]
}

/// A CPU's own memory, written by most of its operations.
pub const fn of_cpu(cpu: CpuId) -> Part {
    offset(&Table::of_shards(cpu.index()..cpu.index() + 1), offset_of!(Scheduler, table))
}

/// The memory of a VM's first `vcpus` vCPUs, at least one.
pub fn of_vm(vm: u8, vcpus: usize) -> Option<[Part; 3]> {
    let first = VcpuId::new(vm, 0)?.index();
    let last = VcpuId::new(vm, u8::try_from(vcpus.checked_sub(1)?).ok()?)?.index();
    Some(Table::of_items(first..last + 1).map(|part| offset(&part, offset_of!(Scheduler, table))))
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::id::VMS;

    /// All parts of a scheduler for the largest machine.
    fn all() -> Vec<Part> {
        let cpus = (0..CPUS).map(|cpu| of_cpu(CpuId::wrapping(cpu)));
        let vms = (0..VMS as u8).flat_map(|vm| of_vm(vm, 256).unwrap());
        let mut parts: Vec<_> = of_machine(CPUS).into_iter().chain(cpus).chain(vms).filter(|part| !part.is_empty()).collect();
        parts.sort_by_key(|part| part.start);
        parts
    }

    #[test]
    fn the_parts_are_the_whole() {
        let parts = all();
        assert!(parts.windows(2).all(|two| two[0].end <= two[1].start), "{parts:?}");
        assert!(parts.last().unwrap().end <= size_of::<Scheduler>());
        let rest = size_of::<Scheduler>() - parts.iter().map(length).sum::<usize>();
        assert!(rest < align_of::<Scheduler>(), "{rest} bytes are in no part: more than fill the last page");
    }

    #[test]
    fn a_small_machine_takes_little() {
        let parts = of_machine(2).into_iter().chain([0, 1].map(|cpu| of_cpu(CpuId::wrapping(cpu)))).chain(of_vm(0, 4).unwrap());
        assert_eq!(parts.map(|part| length(&part)).sum::<usize>(), BASE + 2 * CPU + 4 * VCPU + size_of::<u16>());
        assert!(of_vm(VMS as u8, 1).is_none() && of_vm(0, 0).is_none() && of_vm(0, 257).is_none());
    }

    #[test]
    fn what_each_takes() {
        assert_eq!((CPU, VCPU), (4544, 98));
        assert!((36 << 10..42 << 10).contains(&BASE), "{BASE}");
    }
}
