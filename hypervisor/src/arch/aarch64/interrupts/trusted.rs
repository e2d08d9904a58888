//! SGIs without exits for a trusted VM (`ipi = "direct"`): while a vCPU is direct, its guest writes the physical
//! ICC_SGI1R_EL1.
//!
//! The guest names targets by virtual affinities, hardware by physical ones: each vCPU is therefore bound to the CPU
//! of the same affinity. SGIs that arrive at such a CPU belong to its vCPU ([`owner_at`]), which takes them itself
//! while direct; otherwise Stile does ([`arrived`]). SGIs to other CPUs stay pending and disabled there, except the
//! kick, which is harmless.
//!
//! SGIs that hardware would not deliver as the guest expects must be sent by Stile: [`Trust::redistributor_written`].

use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use stile_blob::{BinaryPoint, Interrupts, IpiAccess, Techniques};
use stile_board::{CpuId, CpuSet, MAX_CPUS, VCPU_WORDS};
use stile_vgic::{Owner, is_on_cpus_of_its_affinities};

use super::claims;
use super::delivery;
use super::interface;
use super::place::{Place, find};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::{board, gic, redistributor, sgi};
use crate::console::log;
use crate::cpu;
use crate::vm::Vcpu;

/// For each CPU, the vCPU that owns arriving SGIs: VM and number, or [`NOBODY`].
static OWNERS: [AtomicU16; MAX_CPUS] = [const { AtomicU16::new(NOBODY) }; MAX_CPUS];
const NOBODY: u16 = u16::MAX;

/// Whether these techniques request SGIs without exits.
pub fn is_wanted(techniques: Techniques) -> bool {
    techniques.interrupts == Interrupts::Direct && techniques.ipi == IpiAccess::Direct
}

/// The vCPU of a trusted VM that owns SGIs arriving at a CPU, if any.
pub fn owner_at(cpu: usize) -> Option<Owner> {
    let owner = OWNERS[cpu % MAX_CPUS].load(Ordering::Relaxed);
    let [vm, vcpu] = owner.to_be_bytes();
    (owner != NOBODY).then_some(Owner { vm, vcpu })
}

/// Bit mask of the SGIs, besides the kick, that Stile takes on a CPU.
pub fn sgis_at(cpu: usize) -> u32 {
    if owner_at(cpu).is_some() { sgi::others() } else { 0 }
}

/// Handles an SGI other than a kick that arrived at this CPU while no vCPU is direct, and that was acknowledged and
/// ended.
pub fn arrived(cpu: &Cpu, intid: u32) {
    // A later one of the sender is a new SGI.
    gic::complete_acknowledge();
    let Some(target) = owner_at(cpu.index).and_then(find) else { return };
    target.arch.requests.post_sgi(intid);
    if cpu::runs_here(target) { delivery::pull(cpu) } else { cpu::notify(target) }
}

/// Permission of a VM to send SGIs without exits.
pub struct Trust {
    vm: u8,
    /// vCPUs to which Stile must send the SGIs: bit n % 64 of word n / 64 is vCPU n.
    needs_trapped: [AtomicU64; VCPU_WORDS],
}

impl Trust {
    /// Grants the permission to VM number `vm` before its guest starts, if configured and possible. A reason against
    /// it is logged; the VM's SGIs then trap. `usable`: the CPUs that the VM may use.
    pub fn of(vm: usize, config: &stile_blob::Vm<'_>, techniques: Techniques, usable: &CpuSet) -> Option<Trust> {
        if !is_wanted(techniques) {
            return None;
        }
        let cpus = || (0..usize::from(config.vcpus)).map(|vcpu| config.cpus_of(vcpu, usable));
        if let Some(why) = refusal(vm, techniques, cpus()) {
            log!("{}: SGIs trap, although ipi = \"direct\" is asked for: {why}", config.name);
            return None;
        }
        for (vcpu, cpus) in cpus().enumerate() {
            let Some(cpu) = cpus.first().map(CpuId::index) else { continue };
            OWNERS[cpu].store(u16::from_be_bytes([vm as u8, vcpu as u8]), Ordering::Relaxed);
            redistributor::accept(cpu, sgi::others());
        }
        Some(Trust { vm: vm as u8, needs_trapped: [const { AtomicU64::new(0) }; VCPU_WORDS] })
    }

    /// Whether a vCPU that becomes direct may send SGIs.
    pub fn is_in_force(&self) -> bool {
        self.needs_trapped.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Called after a write of a vCPU's redistributor. `traps`: Stile must send SGIs to it
    /// ([`Redistributor::needs_trapped_sgis`]).
    ///
    /// [`Redistributor::needs_trapped_sgis`]: stile_vgic::Redistributor::needs_trapped_sgis
    pub fn redistributor_written(&self, vcpu: &Vcpu, traps: bool) {
        let index = vcpu.arch.index;
        let (word, bit) = (&self.needs_trapped[index / 64 % VCPU_WORDS], 1u64 << (index % 64));
        let before = match traps {
            true => word.fetch_or(bit, Ordering::Relaxed),
            false => word.fetch_and(!bit, Ordering::Relaxed),
        };
        if traps && before & bit == 0 {
            // A vCPU that becomes direct after this sees the bit: it is published before it checks
            // (`Place::publish`), and `Place::end` has a fence.
            vcpu.vm().vcpus.iter().filter_map(|vcpu| vcpu.arch.direct).for_each(Place::end);
        }
    }

    /// Drops pending SGIs at a reset of the VM. None of its vCPUs runs.
    pub fn reset(&self) {
        self.needs_trapped.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.cpus().for_each(|cpu| _ = redistributor::take_late_sgis(cpu));
    }

    /// CPUs of the VM.
    fn cpus(&self) -> impl Iterator<Item = usize> {
        (0..MAX_CPUS).filter(|&cpu| owner_at(cpu).is_some_and(|owner| owner.vm == self.vm))
    }
}

impl Drop for Trust {
    /// Releases the CPUs of a retired VM.
    fn drop(&mut self) {
        for cpu in self.cpus() {
            redistributor::ignore(cpu, sgi::others());
            OWNERS[cpu].store(NOBODY, Ordering::Relaxed);
        }
    }
}

/// Reason why a VM whose vCPUs have these CPUs cannot send SGIs without exits, if any.
fn refusal(vm: usize, techniques: Techniques, cpus: impl Iterator<Item = CpuSet>) -> Option<&'static str> {
    // A vCPU of another VM may be direct there now, and have the CPU's SGIs.
    let others = claims::of_others(vm);
    let affinity = |cpu| board::get().cpus.get(cpu).copied();
    if techniques.binary_point == BinaryPoint::Common {
        Some("the physical CPU interface has no fixed binary_point = \"common\"")
    } else if gic::priorities().is_none_or(|priorities| priorities.bits() != u32::from(interface::shape().priority_bits)) {
        Some("the virtual CPU interface has other bits of a priority than the physical one")
    } else if !is_on_cpus_of_its_affinities(cpus, affinity, |cpu| {
        owner_at(cpu).is_some() || CpuId::new(cpu).is_some_and(|cpu| others.contains(cpu))
    }) {
        Some("each vCPU must have a CPU of the same affinity, and no other VM with direct interrupts may use it")
    } else {
        None
    }
}
