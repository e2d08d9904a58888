//! Asserts that Stile's memory for a CPU and a vCPU is what the command `stile check` reports.

use stile_board::footprint::{self, Footprint};
use stile_ledger::Ledger;
use stile_paging::PAGE_SIZE;

use crate::arch;
use crate::arch::contract::VcpuPart;
use crate::cpu::Schedule;
use crate::vm::Vcpu;
use crate::{arena, stacks};

#[cfg(target_arch = "aarch64")]
const TOLD: Footprint = footprint::AARCH64;
#[cfg(target_arch = "x86_64")]
const TOLD: Footprint = footprint::X86_64;

/// The VMXON region is a page.
const CPU: u64 = stacks::SIZE + if cfg!(target_arch = "x86_64") { PAGE_SIZE } else { 0 };
const VCPU: u64 = arena::room::<Vcpu>() + arena::room::<Ledger>() + <arch::Vcpu as VcpuPart>::MEMORY;

const _: () = assert!(TOLD.cpu == CPU);
const _: () = assert!(TOLD.vcpu == VCPU);
// It grows with the most CPUs, vCPUs and VMs: docs/memory.md.
const _: () = assert!(size_of::<Schedule>() as u64 <= footprint::SCHEDULE);
