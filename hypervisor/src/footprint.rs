//! Asserts that Stile's memory for a CPU and a vCPU is what the command `stile check` reports.

use stile_board::footprint;
use stile_ledger::Ledger;
use stile_sched::Scheduler;

use crate::arch;
use crate::arch::Arch;
use crate::arch::contract::{Layout, VcpuPart};
use crate::vm::Vcpu;
use crate::{arena, stacks};

const CPU: u64 = stacks::SIZE + Arch::CPU_MEMORY;
const VCPU: u64 = arena::room::<Vcpu>() + arena::room::<Ledger>() + <arch::Vcpu as VcpuPart>::MEMORY;

const _: () = assert!(Arch::FOOTPRINT.cpu == CPU);
const _: () = assert!(Arch::FOOTPRINT.vcpu == VCPU);
// It grows with the most CPUs, vCPUs and VMs: docs/memory.md.
const _: () = assert!(size_of::<Scheduler>() as u64 <= footprint::SCHEDULE);
