//! SGIs that a trusted VM (`ipi = "direct"`) sends without an exit: while a vCPU is direct, its guest writes the physical ICC_SGI1R_EL1.
//!
//! The guest names targets by the affinities that it sees, and hardware by those of CPUs: so each vCPU has one CPU, of the same affinity. SGIs
//! that come to such a CPU are its vCPU's ([`owner_at`]): direct, it takes them itself; otherwise Stile does ([`arrived`]). Those that are sent to
//! other CPUs stay pending there, disabled, except for the kick, which is harmless.
//!
//! An SGI that hardware would not bring to its target as the guest expects must be sent by Stile: [`Trust::redistributor_written`].

use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use stile_blob::{BinaryPoint, Interrupts, IpiAccess, Techniques};
use stile_board::MAX_CPUS;
use stile_vgic::{Owner, is_on_cpus_of_its_affinities};

use super::delivery;
use super::interface;
use super::place::{Place, find};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::{board, gic, redistributor};
use crate::console::log;
use crate::cpu;
use crate::vm::Vcpu;

/// The vCPU that SGIs belong to that come to each CPU, by its VM and number; or [`NOBODY`].
static OWNERS: [AtomicU16; MAX_CPUS] = [const { AtomicU16::new(NOBODY) }; MAX_CPUS];
const NOBODY: u16 = u16::MAX;

/// Whether a VM with these techniques is to send SGIs without an exit.
pub fn is_wanted(techniques: Techniques) -> bool {
    techniques.interrupts == Interrupts::Direct && techniques.ipi == IpiAccess::Direct
}

/// The vCPU that SGIs belong to that come to a CPU, if its VM is trusted.
pub fn owner_at(cpu: usize) -> Option<Owner> {
    let owner = OWNERS[cpu % MAX_CPUS].load(Ordering::Relaxed);
    let [vm, vcpu] = owner.to_be_bytes();
    (owner != NOBODY).then_some(Owner { vm, vcpu })
}

/// The SGIs, besides the kick, that Stile takes on a CPU.
pub fn sgis_at(cpu: usize) -> u32 {
    if owner_at(cpu).is_some() { gic::SGIS } else { 0 }
}

/// An SGI other than a kick came to this CPU, where nobody is direct, and is over as far as hardware is concerned.
pub fn arrived(cpu: &Cpu, intid: u32) {
    // The sender's next one is another one.
    gic::complete_acknowledge();
    let Some(target) = owner_at(cpu.index).and_then(find) else { return };
    target.arch.requests.post_sgi(intid);
    if cpu::runs_here(target) { delivery::pull(cpu) } else { cpu::notify(target) }
}

/// The right of a VM to send SGIs without an exit.
pub struct Trust {
    vm: u8,
    /// vCPUs whose SGIs Stile must send, a bit each.
    needs_trapped: AtomicU64,
}

impl Trust {
    /// For VM number `vm`, before its guest starts, if it is wanted and possible. A reason against it is reported: the VM's SGIs trap then.
    pub fn of(vm: usize, config: &stile_blob::Vm<'_>, techniques: Techniques, online: u64) -> Option<Trust> {
        if !is_wanted(techniques) {
            return None;
        }
        let cpus = || (0..usize::from(config.vcpus)).map(|vcpu| config.cpus_of(vcpu, online));
        if let Some(why) = refusal(techniques, cpus()) {
            log!("{}: SGIs trap, although ipi = \"direct\" is asked for: {why}", config.name);
            return None;
        }
        for (vcpu, cpus) in cpus().enumerate() {
            let cpu = cpus.trailing_zeros() as usize % MAX_CPUS;
            OWNERS[cpu].store(u16::from_be_bytes([vm as u8, vcpu as u8]), Ordering::Relaxed);
            redistributor::accept(cpu, gic::SGIS);
        }
        Some(Trust { vm: vm as u8, needs_trapped: AtomicU64::new(0) })
    }

    /// Whether a vCPU that becomes direct may send SGIs.
    pub fn is_in_force(&self) -> bool {
        self.needs_trapped.load(Ordering::Relaxed) == 0
    }

    /// The redistributor of a vCPU of this VM was written. `traps`: SGIs to it must be sent by Stile ([`Redistributor::needs_trapped_sgis`]).
    ///
    /// [`Redistributor::needs_trapped_sgis`]: stile_vgic::Redistributor::needs_trapped_sgis
    pub fn redistributor_written(&self, vcpu: &Vcpu, traps: bool) {
        let bit = 1u64.checked_shl(vcpu.arch.index as u32).unwrap_or(0);
        let before = match traps {
            true => self.needs_trapped.fetch_or(bit, Ordering::Relaxed),
            false => self.needs_trapped.fetch_and(!bit, Ordering::Relaxed),
        };
        if traps && before & bit == 0 {
            // Whoever becomes direct after this sees the bit: it is published before it asks (`Place::publish`), and there is a fence in `Place::end`.
            vcpu.vm().vcpus.iter().filter_map(|vcpu| vcpu.arch.direct).for_each(Place::end);
        }
    }

    /// The VM is being reset. None of its vCPUs runs: SGIs that are pending are of the last boot.
    pub fn reset(&self) {
        self.needs_trapped.store(0, Ordering::Relaxed);
        self.cpus().for_each(|cpu| _ = redistributor::strays(cpu));
    }

    /// Its CPUs.
    fn cpus(&self) -> impl Iterator<Item = usize> {
        (0..MAX_CPUS).filter(|&cpu| owner_at(cpu).is_some_and(|owner| owner.vm == self.vm))
    }
}

impl Drop for Trust {
    /// The VM is gone.
    fn drop(&mut self) {
        for cpu in self.cpus() {
            redistributor::ignore(cpu, gic::SGIS);
            OWNERS[cpu].store(NOBODY, Ordering::Relaxed);
        }
    }
}

/// The reason why SGIs of a VM, whose vCPUs have these CPUs, can't leave without an exit; if there is one.
fn refusal(techniques: Techniques, cpus: impl Iterator<Item = u64>) -> Option<&'static str> {
    let affinity = |cpu| board::get().cpus.get(cpu).copied();
    if techniques.binary_point == BinaryPoint::Common {
        Some("the physical CPU interface has no fixed binary_point = \"common\"")
    } else if gic::priorities().is_none_or(|priorities| priorities.bits() != u32::from(interface::shape().priority_bits)) {
        Some("the virtual CPU interface has other bits of a priority than the physical one")
    } else if !is_on_cpus_of_its_affinities(cpus, affinity, |cpu| owner_at(cpu).is_some()) {
        Some("each vCPU must have a CPU of the same affinity, as of no other such VM")
    } else {
        None
    }
}
