//! The parts of a virtual GICv2 that hardware does not virtualize: GICD, and GICC_DIR. GICV is the rest of GICC.

use stile_board::map;
use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;
use stile_vgic::gicv2::{self, PendingSgis, Place};
use stile_vgic::{Delivery, Size};

use super::gic::{RedistributorFrames, read_distributor, settle, wake_for_sgi, write_dir, write_distributor};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::interrupts::delivery::finish;
use crate::arch::aarch64::interrupts::interface::Interface;
use crate::cpu::{self, Outcome};
use crate::device::bus::Device;
use crate::vm::Vcpu;
use crate::vm::power::End;

const _: () = assert!(map::GICV2_GICD_SIZE == gicv2::GICD_SIZE && stile_blob::MAX_GICV2_VCPUS as usize == gicv2::MAX_VCPUS);

/// The redistributors, in which the distributor's banked registers are.
const PRIVATE: RedistributorFrames = RedistributorFrames { first: 0 };

/// The offset in [`PRIVATE`] of one in the redistributor of the loaded vCPU.
fn own(cpu: &Cpu, offset: u32) -> u64 {
    cpu.vcpu().arch.index as u64 * map::GICR_STRIDE + u64::from(offset)
}

fn size(bytes: u64) -> Size {
    Size::from_sas(bytes.trailing_zeros())
}

/// GICD's frame on the memory bus.
pub struct DistributorFrame;

impl Device for DistributorFrame {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        self.try_read(cpu, offset, bytes).unwrap_or(0)
    }

    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        let (offset, size) = (offset as u32, size(bytes));
        match Place::of(offset) {
            Place::Private(at) => PRIVATE.try_read(cpu, own(cpu, at), bytes),
            Place::OwnTargets => Some(gicv2::own_targets(offset, cpu.vcpu().arch.index, cpu.vcpu().vm().vcpus.len(), size)),
            Place::Sgir => Some(0),
            Place::PendingSgis(sgis) => Some(sgis.value(PRIVATE.try_read(cpu, own(cpu, PendingSgis::PENDING), 4)?, size)),
            Place::Shared => {
                let read = |distributor: &mut stile_vgic::Distributor| distributor.read_gicv2(offset, size);
                read_distributor(cpu, read, |distributor| distributor.read_published_gicv2(offset, size))
            }
        }
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let (offset, size) = (offset as u32, size(bytes));
        match Place::of(offset) {
            Place::Private(at) => PRIVATE.write(cpu, own(cpu, at), bytes, Place::private_value(at, value)),
            Place::OwnTargets => None,
            Place::Sgir => {
                if size == Size::Word && offset & 3 == 0 {
                    send(cpu, value);
                }
                None
            }
            Place::PendingSgis(sgis) => {
                let (at, sgis) = sgis.write(size, value)?;
                PRIVATE.write(cpu, own(cpu, at), 4, sgis)
            }
            Place::Shared => {
                write_distributor(cpu, offset, |distributor| distributor.write_gicv2(offset, size, value));
                settle(cpu);
                None
            }
        }
    }
}

/// Guest-physical address of GICD_SGIR.
pub const SGIR: u64 = map::GICD_BASE + 0xf00;

/// Handles a store of a word to GICD_SGIR that names one vCPU, without a search of the bus. Returns `None` for others, and if it takes a
/// lock to send to this vCPU.
#[inline(always)]
pub fn write_sgir(cpu: &mut Cpu, value: u64) -> Option<Outcome> {
    const ROW: RowId = rows::gicd((SGIR - map::GICD_BASE) as u32, true);
    let vcpu = cpu.vcpu();
    let index = gicv2::only_target(value, vcpu.arch.index)?;
    let intid = value as u32 & 0xf;
    if index == vcpu.arch.index {
        let is_raised = vcpu.arch.shortcuts.raise_sgi(&mut Interface::new(cpu.index, vcpu), intid);
        return is_raised.then(|| Outcome::done(ROW));
    }
    if let Some(&target) = vcpu.vm().vcpus.get(index) {
        target.arch.requests.post_sgi(intid);
        if !cpu::kick_if_running(target) {
            // Not `cpu::wake_beside` itself, whose only caller it is: a second one would make that one dearer.
            let _ = wake_for_sgi(cpu, target);
        }
    }
    Some(Outcome::done(ROW))
}

/// Sends an SGI by a write of GICD_SGIR.
fn send(cpu: &mut Cpu, value: u64) {
    let vcpu = cpu.vcpu();
    let vm = vcpu.vm();
    let me = vcpu.arch.index;
    let (intid, targets) = gicv2::decode_sgir(value, me, vm.vcpus.len());
    for index in targets {
        let Some(&target) = vm.vcpus.get(index) else { continue };
        if index == me {
            send_to_self(cpu, vcpu, intid);
        } else {
            target.arch.requests.post_sgi(intid);
            cpu::notify(target);
        }
    }
}

fn send_to_self(cpu: &Cpu, vcpu: &Vcpu, intid: u32) {
    let mut interface = Interface::new(cpu.index, vcpu);
    if vcpu.arch.shortcuts.raise_sgi(&mut interface, intid) {
        return;
    }
    let delivery: Delivery = vcpu.arch.redistributor.lock().send_sgi_self(&mut interface, intid, true);
    finish(vcpu, cpu.index, delivery);
}

/// The second page of GICC: GICC_DIR.
pub struct DeactivationFrame;

impl Device for DeactivationFrame {
    fn read(&self, _: &mut Cpu, _: u64, _: u64) -> u64 {
        0
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        if offset == 0 && bytes == 4 {
            // The rest is an SGI's sender.
            write_dir(cpu, value as u32 & 0x3ff);
        }
        None
    }
}
