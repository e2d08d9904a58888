//! CPUs of VMs with direct interrupts ([`super::direct`]): claimed at the VM's creation, and released with it. Several
//! VMs may claim a CPU.

use core::sync::atomic::{AtomicBool, Ordering};

use stile_board::{MAX_CPUS, MAX_VMS};
use stile_lock::TicketLock;
use stile_sched::{CpuId, CpuSet};
use stile_vgic::{Claims, LateSgis};

use crate::arch::aarch64::host::{board, gic};
use crate::cpu;

static CLAIMS: TicketLock<Claims<MAX_VMS>> = TicketLock::new(Claims::new());
/// Whether there are claims, and a CPU is left that takes Stile's SPIs.
static HAS_HOUSEKEEPER: AtomicBool = AtomicBool::new(false);
/// Owner of SGIs that are pending at each CPU while no vCPU is direct there.
static LATE: [LateSgis; MAX_CPUS] = [const { LateSgis::new() }; MAX_CPUS];

/// CPUs of a VM whose vCPUs may have direct interrupts.
pub struct Claim {
    vm: usize,
}

impl Claim {
    /// Claims online CPUs for VM number `vm`, before its guest starts.
    ///
    /// # Errors
    /// The GIC has two security states, or no priority above those of guests' interrupts.
    pub fn new(vm: usize, cpus: &CpuSet, online: &CpuSet) -> Result<Claim, &'static str> {
        if let Some(why) = unsupported() {
            return Err(why);
        }
        let mut claims = CLAIMS.lock();
        let change = claims.claim(vm, cpus, online);
        publish(&claims, change.moved_to);
        Ok(Claim { vm })
    }
}

/// Reason why a VM that is created while the machine runs can't have direct interrupts on these CPUs, if any.
pub fn obstacle(vm: usize, cpus: &CpuSet, online: &CpuSet) -> Option<&'static str> {
    // The last CPU would take direct interrupts from all VMs.
    let last = || CLAIMS.lock().leaves_none(vm, cpus, online).then_some("no CPU would be left for Stile's own interrupts");
    unsupported().or_else(last)
}

/// Reason why the GIC does not support direct interrupts, if any.
fn unsupported() -> Option<&'static str> {
    if gic::has_two_states() {
        // docs/direct-interrupts.md, "Two security states".
        Some("`interrupts = \"direct\"` does not work yet where the GIC has two security states (GICD_CTLR.DS = 0)")
    } else if gic::priorities().is_none() {
        Some("the GIC keeps too few bits of a priority for `interrupts = \"direct\"`")
    } else {
        None
    }
}

impl Drop for Claim {
    /// Releases the CPUs of a VM that was retired: none of its vCPUs is direct.
    fn drop(&mut self) {
        let mut claims = CLAIMS.lock();
        let change = claims.release(self.vm);
        LATE.iter().for_each(|late| late.forget(self.vm as u8));
        publish(&claims, change.moved_to);
        let others = claims.claimed();
        drop(claims);
        if change.moved_to.is_some() {
            // If there was none, no vCPU could be direct.
            others.iter().for_each(cpu::request_resched);
        }
    }
}

/// Routes the operator's line to the CPU that is left for it.
fn publish(claims: &Claims<MAX_VMS>, moved_to: Option<CpuId>) {
    HAS_HOUSEKEEPER.store(claims.housekeeper().is_some(), Ordering::Relaxed);
    let mpidr = moved_to.and_then(|cpu| board::get().cpus.get(cpu.index()).copied());
    if let (Some(uart), Some(mpidr)) = (super::uart(), mpidr) {
        gic::move_spi(uart, mpidr);
    }
}

/// Whether a CPU is left for Stile's own interrupts.
pub fn has_housekeeper() -> bool {
    HAS_HOUSEKEEPER.load(Ordering::Relaxed)
}

/// CPUs that other VMs than number `vm` have claimed.
pub fn of_others(vm: usize) -> CpuSet {
    CLAIMS.lock().of_others(vm)
}

/// Owner of SGIs that are pending at a CPU where no vCPU is direct.
pub fn late(cpu: usize) -> &'static LateSgis {
    &LATE[cpu % MAX_CPUS]
}
