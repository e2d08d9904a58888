//! The parts of the virtual GIC that hardware does not virtualize: SGI generation, GICD, GICR.

use stile_board::{VCPU_WORDS, map};
use stile_ledger::RowId;
use stile_ledger::aarch64::{self as rows, HotRegister};
use stile_vgic::{Delivery, Distributor, Kick, Read, Sgi, SgiRegister, Size};

use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::read_sysreg;
use crate::arch::aarch64::host::{sgi, timer};
use crate::arch::aarch64::interrupts::delivery::{AT_ONCE, accept, deliver, finish, pull, sync_private, synchronize};
use crate::arch::aarch64::interrupts::interface::Interface;
use crate::arch::aarch64::interrupts::{direct, place};
use crate::cpu;
use crate::cpu::Outcome;
use crate::device::bus::Device;
use crate::vm::power::End;
use crate::vm::{Vcpu, Vm};

/// Handles a write of ICC_SGI1R_EL1.
#[inline(always)]
pub fn write_sgi1r(cpu: &mut Cpu, value: u64) -> Outcome {
    const ROW: RowId = rows::sysreg(HotRegister::IccSgi1r, true);
    let vcpu = cpu.vcpu();
    let vm = vcpu.vm();
    let intid = (value >> 24) as u32 & 0xf;
    let Some(index) = Sgi::only_target(value) else { return write_sgi1r_slowly(cpu, value) };
    if index == vcpu.arch.index {
        if vcpu.arch.shortcuts.raise_sgi(&mut Interface::new(cpu.index, vcpu), intid) {
            return Outcome::done(ROW);
        }
        return write_sgi1r_slowly(cpu, value);
    }
    let Some(&target) = vm.vcpus.get(index) else { return Outcome::done(ROW) };
    target.arch.requests.post_sgi(intid);
    if cpu::kick_if_running(target) { Outcome::done(ROW) } else { wake_for_sgi(cpu, target) }
}

/// Handles a write of ICC_SGI1R_EL1 by a vCPU with direct interrupts.
#[inline(always)]
pub fn write_direct_sgi1r(cpu: &mut Cpu, value: u64) -> Outcome {
    let vm = cpu.vcpu().vm();
    if let Some(index) = Sgi::only_target(value)
        && let Some(target) = vm.vcpus.get(index)
        && place::send(target, cpu.index, (value >> 24) as u32 & 0xf)
    {
        return Outcome::done(rows::sysreg(HotRegister::IccSgi1r, true));
    }
    write_sgi1r_slowly(cpu, value)
}

#[cold]
#[inline(never)]
fn write_sgi1r_slowly(cpu: &mut Cpu, value: u64) -> Outcome {
    send_sgi(cpu, SgiRegister::Sgi1r, value);
    Outcome::done(rows::sysreg(HotRegister::IccSgi1r, true))
}

/// Wakes the target of a requested SGI, which does not run. Returns the outcome of a write of ICC_SGI1R_EL1.
#[inline(never)]
pub fn wake_for_sgi(cpu: &mut Cpu, target: &'static Vcpu) -> Outcome {
    cpu::wake_beside(cpu, target);
    Outcome::done(rows::sysreg(HotRegister::IccSgi1r, true))
}

/// Handles writes of ICC_SGI1R_EL1, ICC_SGI0R_EL1, ICC_ASGI1R_EL1.
pub fn send_sgi(cpu: &mut Cpu, register: SgiRegister, value: u64) {
    let vcpu = cpu.vcpu();
    let vm = vcpu.vm();
    let me = vcpu.arch.index;
    let sgi = Sgi::decode(register, value, me, vm.vcpus.len());
    let mut kick = Kick::NONE;
    for index in sgi.targets {
        let Some(&target) = vm.vcpus.get(index) else { continue };
        if sgi.group1 && place::send(target, cpu.index, sgi.intid) {
            continue;
        }
        if index == me {
            direct::leave_for_handler(cpu);
            let mut interface = Interface::new(cpu.index, target);
            let delivery = target.arch.redistributor.lock().send_sgi_self(&mut interface, sgi.intid, sgi.group1);
            finish(vcpu, cpu.index, delivery);
        } else if sgi.group1 {
            target.arch.requests.post_sgi(sgi.intid);
            cpu::notify(target);
        } else {
            let newly_pending = target.arch.redistributor.lock().post_sgi(sgi.intid, false);
            if newly_pending {
                kick |= Kick::one(index);
            }
        }
    }
    deliver(vm, kick);
}

/// INTID and targets of the SGI sent by the exit being handled, a write of ICC_SGI1R_EL1.
pub fn sent_by_exit(cpu: &Cpu) -> (u16, [u64; VCPU_WORDS]) {
    let register = read_sysreg!(ESR_EL2) >> 5 & 0x1f;
    let vcpu = cpu.vcpu();
    let value = cpu.frame.get(register as usize);
    let sgi = Sgi::decode(SgiRegister::Sgi1r, value, vcpu.arch.index, vcpu.vm().vcpus.len());
    (sgi.intid as u16, sgi.targets.words())
}

/// Handles ICC_DIR_EL1, trapped while list registers overflow.
pub fn write_dir(cpu: &mut Cpu, intid: u32) {
    let vcpu = cpu.vcpu();
    let mut distributor = vcpu.vm().arch.distributor.lock();
    let kick = vcpu.arch.redistributor.lock().deactivate(&mut distributor, &mut Interface::new(cpu.index, vcpu), intid);
    drop(distributor);
    deliver(vcpu.vm(), kick);
}

const GICD_CTLR: u32 = 0;

/// Synchronizes some vCPUs that are loaded nowhere, for a guest that polls GICD_CTLR.RWP: those that are off do not do
/// so themselves.
#[cold]
#[inline(never)]
fn settle_some(vm: &Vm, unsettled: Kick) {
    let put = |index: &usize| vm.vcpus.get(*index).is_some_and(|vcpu| !vcpu.arch.redistributor.lock().is_loaded());
    let some = unsettled.into_iter().filter(put).take(AT_ONCE);
    deliver(vm, some.fold(Kick::NONE, |kick, index| kick | Kick::one(index)));
}

/// Waits until all vCPUs have observed a write of the distributor's registers: a GICv2 has no RWP for which a guest could.
#[cold]
pub fn settle(cpu: &Cpu) {
    let vm = cpu.vcpu().vm();
    wait_for(cpu.vcpu(), cpu.index, || {
        let unsettled = vm.arch.distributor.lock().unsettled();
        if !unsettled.is_empty() {
            settle_some(vm, unsettled);
        }
        unsettled.is_empty()
    });
}

/// GICD's frame on the memory bus.
pub struct DistributorFrame;

impl Device for DistributorFrame {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        self.try_read(cpu, offset, bytes).unwrap_or(0)
    }

    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        let (offset, size) = (offset as u32, size(bytes));
        if offset == GICD_CTLR {
            let vm = cpu.vcpu().vm();
            let unsettled = vm.arch.distributor.lock().unsettled();
            if !unsettled.is_empty() {
                settle_some(vm, unsettled);
            }
        }
        read_distributor(cpu, |distributor| distributor.read(offset, size), |distributor| distributor.read_published(offset, size))
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        write_distributor(cpu, offset as u32, |distributor| distributor.write(offset as u32, size(bytes), value));
        None
    }
}

/// Reads a register of the distributor by `read`, and by `published` once the vCPUs that hold a part of it have published
/// that. Returns `None` as [`Device::try_read`].
pub fn read_distributor(
    cpu: &mut Cpu,
    read: impl FnOnce(&mut Distributor) -> Read,
    published: impl FnOnce(&Distributor) -> u64,
) -> Option<u64> {
    let vm = cpu.vcpu().vm();
    // The guard is dropped before the match.
    let read = read(&mut vm.arch.distributor.lock());
    let holders = match read {
        Read::Value(value) => return Some(value),
        Read::Stale(holders) => holders,
    };
    direct::leave_for_handler(cpu);
    deliver(vm, holders);
    let is_known = wait_for(cpu.vcpu(), cpu.index, || {
        let left = vm.arch.distributor.lock().unpublished().and(holders);
        // A vCPU that was put since the request publishes its state from memory.
        let put = |index: &usize| vm.vcpus.get(*index).is_some_and(|vcpu| !vcpu.arch.redistributor.lock().is_loaded());
        // One at a time, as interrupts of this CPU end the wait.
        if let Some(index) = left.into_iter().find(put) {
            deliver(vm, Kick::one(index));
        }
        left.is_empty()
    });
    is_known.then(|| published(&vm.arch.distributor.lock()))
}

/// Writes the register of the distributor at an offset by `write`.
pub fn write_distributor(cpu: &Cpu, offset: u32, write: impl FnOnce(&mut Distributor) -> Kick) {
    let vm = cpu.vcpu().vm();
    let mut distributor = vm.arch.distributor.lock();
    let kick = write(&mut distributor);
    vm.arch.read_shadow.update(&distributor, offset);
    drop(distributor);
    deliver(vm, kick);
}

fn size(bytes: u64) -> Size {
    Size::from_sas(bytes.trailing_zeros())
}

/// GICR's frames on the memory bus: a redistributor for each vCPU.
pub struct RedistributorFrames {
    /// The vCPU whose redistributor is the first.
    pub first: usize,
}

impl RedistributorFrames {
    /// Returns the vCPU whose redistributor is at an offset, and the offset in it. Delivers requested SGIs first, so
    /// that the registers show them.
    #[inline(always)]
    fn owner(&self, cpu: &mut Cpu, offset: u64) -> Option<(&'static Vcpu, u32)> {
        let vcpu = cpu.vcpu();
        let owner = *vcpu.vm().vcpus.get(self.first + (offset / map::GICR_STRIDE) as usize)?;
        direct::leave_for_handler(cpu);
        if owner.arch.index == vcpu.arch.index {
            pull(cpu);
        } else if !owner.arch.requests.is_empty() {
            // Posted SPIs are left: a vCPU that is off may not get them again, and one that was woken for them must find them.
            let requests = owner.arch.requests.take_private();
            owner.arch.redistributor.lock().accept(requests);
            sync_private(owner);
        }
        Some((owner, (offset % map::GICR_STRIDE) as u32))
    }

    /// Makes the CPU of a redistributor's vCPU, which may be the loaded one, synchronize its list registers with it.
    fn synchronize_owner(cpu: &Cpu, owner: &'static Vcpu) {
        if owner.arch.index == cpu.vcpu().arch.index { sync_own(cpu) } else { sync_private(owner) }
    }
}

impl Device for RedistributorFrames {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        self.try_read(cpu, offset, bytes).unwrap_or(0)
    }

    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        let Some((owner, offset)) = self.owner(cpu, offset) else { return Some(0) };
        let read = owner.arch.redistributor.lock().read(offset, size(bytes));
        match read {
            Read::Value(value) => Some(value),
            Read::Stale(_) => {
                Self::synchronize_owner(cpu, owner);
                let vcpu = cpu.vcpu();
                let is_known = wait_for(vcpu, cpu.index, || {
                    let redistributor = owner.arch.redistributor.lock();
                    let (done, loaded) = (!redistributor.unpublished(), redistributor.is_loaded());
                    drop(redistributor);
                    if !done && !loaded {
                        sync_private(owner);
                    }
                    done
                });
                is_known.then(|| owner.arch.redistributor.lock().read_published(offset, size(bytes)))
            }
        }
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let (owner, offset) = self.owner(cpu, offset)?;
        let mut redistributor = owner.arch.redistributor.lock();
        let delivery = redistributor.write(offset, size(bytes), value);
        let traps = redistributor.needs_trapped_sgis(sgi::reserved());
        drop(redistributor);
        if let Some(trust) = &owner.vm().arch.trust {
            trust.redistributor_written(owner, traps);
        }
        if delivery != Delivery::Done {
            Self::synchronize_owner(cpu, owner);
        }
        None
    }
}

/// Synchronizes the loaded vCPU's list registers after an access to its own redistributor.
fn sync_own(cpu: &Cpu) {
    let vcpu = cpu.vcpu();
    let delivery = vcpu.arch.redistributor.lock().sync_private(&mut Interface::new(cpu.index, vcpu));
    finish(vcpu, cpu.index, delivery);
}

/// Reciprocal, in 1/s, of the time after which [`wait_for`] gives up if an interrupt of this CPU is pending: 50 us. Two
/// vCPUs that read each other's state interrupt each other, and must not give up before either has answered.
const GIVE_UPS_PER_SECOND: u64 = 20_000;

/// Waits until other CPUs have synchronized their list registers, and serves their requests meanwhile, since they may
/// wait for this CPU in the same way. Returns whether all have. Ends early if the VM is being stopped, or, after a time,
/// if an interrupt for this CPU is pending: the exit is bounded even if a guest with direct interrupts prevents its CPU
/// from answering. The time is in ticks because a poll may take the locks of all vCPUs.
fn wait_for(vcpu: &Vcpu, cpu: usize, done: impl Fn() -> bool) -> bool {
    let start = timer::now();
    let limit = timer::frequency() / GIVE_UPS_PER_SECOND;
    while !done() {
        // ISR_EL1: an interrupt is pending for EL2.
        let is_interrupted = || read_sysreg!(ISR_EL1) != 0 && timer::now().wrapping_sub(start) > limit;
        if vcpu.vm().power.is_ending() || is_interrupted() {
            return false;
        }
        let requests = vcpu.arch.requests.take();
        if !requests.is_empty() {
            accept(vcpu, cpu, requests);
        }
        if vcpu.arch.redistributor.lock().unpublished() {
            synchronize(vcpu, cpu);
        }
        core::hint::spin_loop();
    }
    true
}
