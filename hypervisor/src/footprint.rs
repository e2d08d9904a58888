//! Asserts that Stile's memory for a CPU and a vCPU is what the command `stile check` reports.

use stile_board::footprint;
use stile_ledger::Ledger;
use stile_paging::PAGE_SIZE;
use stile_sched::{CpuId, memory};

use crate::arch;
use crate::arch::Arch;
use crate::arch::contract::{Layout, VcpuPart};
use crate::vm::Vcpu;
use crate::{arena, stacks};

const CPU: u64 = stacks::SIZE + QUEUE + Arch::CPU_MEMORY;
/// Its pages are the CPU's alone.
const QUEUE: u64 = {
    let queue = memory::of_cpu(CpuId::BOOT);
    assert!((queue.start as u64).is_multiple_of(PAGE_SIZE));
    (queue.end - queue.start) as u64
};
const VCPU: u64 = arena::room::<Vcpu>() + arena::room::<Ledger>() + <arch::Vcpu as VcpuPart>::MEMORY;

const _: () = assert!(Arch::FOOTPRINT.cpu == CPU);
const _: () = assert!(Arch::FOOTPRINT.vcpu == VCPU);
// The schedule: docs/memory.md.
const _: () = assert!(memory::BASE as u64 <= footprint::SCHEDULE);
const _: () = assert!(memory::CPU as u64 == footprint::SCHEDULE_CPU);
const _: () = assert!(memory::VCPU as u64 == footprint::SCHEDULE_VCPU);
