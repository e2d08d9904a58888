//! The PCI host bridge of VMs with functions, and the frames that turn messages into interrupts: the ITS for these, an MSI
//! frame for served devices.

use stile_board::{intid, map};
use stile_sysreg::syndrome::Esr;

use super::gic::RedistributorFrames;
use crate::arch::aarch64::assigned::Functions;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::interrupts::delivery;
use crate::device::bus::Device;
use crate::vm::power::End;

fn functions(cpu: &Cpu) -> Option<&'static Functions> {
    cpu.vcpu().vm().arch.functions
}

/// The host bridge's BAR window, where it is unmapped, followed by configuration space: one region, because the bus's
/// number of regions is small.
pub struct HostBridge;

impl HostBridge {
    /// Size of the region.
    pub const SIZE: u64 = CONFIG + map::PCI_ECAM_SIZE;

    /// Whether an offset is in configuration space, or in the unused gap before it.
    pub fn is_config(offset: u64) -> bool {
        offset >= map::PCI_WINDOW_SIZE
    }
}

/// Offset of configuration space in the region.
const CONFIG: u64 = map::PCI_ECAM_BASE - map::PCI_WINDOW_BASE;

/// Offset of an access within configuration space; `None` before it, and for accesses wider than 32 bits.
fn config_offset(offset: u64, bytes: u64) -> Option<u64> {
    offset.checked_sub(CONFIG).filter(|_| bytes <= 4)
}

impl Device for HostBridge {
    #[cold]
    #[inline(never)]
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        let Some(functions) = functions(cpu) else { return u64::MAX };
        match Self::is_config(offset) {
            true => config_offset(offset, bytes).map_or(u64::MAX, |offset| functions.list.read_config(offset, bytes)),
            false => functions.list.read_memory(map::PCI_WINDOW_BASE + offset, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let functions = functions(cpu)?;
        match Self::is_config(offset) {
            true => functions.list.write_config(&cpu.vcpu().vm().arch, config_offset(offset, bytes)?, bytes, value),
            false => functions.list.write_memory(map::PCI_WINDOW_BASE + offset, bytes, value),
        }
        None
    }
}

/// The MSI frame, with the registers of a GICv2m (Arm Server Base System Architecture, appendix GICv2m).
pub struct MsiFrame;

/// MSI_TYPER.
const TYPER: u64 = 0x8;

impl Device for MsiFrame {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        if offset == TYPER { u64::from(intid::MSI_BASE) << 16 | u64::from(intid::MSI_COUNT) } else { 0 }
    }

    /// A vCPU's write to the doorbell sends a message, as a function's would.
    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        let messages = u64::from(intid::MSI_BASE)..u64::from(intid::MSI_BASE + intid::MSI_COUNT);
        if offset == map::MSI_DOORBELL && messages.contains(&value) {
            let vm = cpu.vcpu().vm();
            let kick = vm.arch.distributor.lock().pulse(value as u32);
            delivery::deliver(vm, kick);
        }
        None
    }
}

/// The MSI frame and the ITS of a VM with functions: one region, because the bus's number of regions is small. The MSI frame is
/// there only if the VM also has served devices.
pub struct Messages;

impl Messages {
    /// Size of the region.
    pub const SIZE: u64 = ITS + map::ITS_SIZE;

    /// Whether an offset is in the ITS.
    pub fn is_its(offset: u64) -> bool {
        offset >= ITS
    }
}

/// Offset of the ITS in the region.
const ITS: u64 = map::ITS_BASE - map::MSI_FRAME_BASE;

/// Whether an access is one to the MSI frame.
fn is_frame(cpu: &Cpu, offset: u64, bytes: u64) -> bool {
    offset < map::MSI_FRAME_SIZE && bytes == 4 && cpu.vcpu().vm().arch.served.is_some()
}

impl Device for Messages {
    #[cold]
    #[inline(never)]
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        match offset.checked_sub(ITS) {
            Some(offset) => functions(cpu).map_or(0, |functions| functions.read_its(offset, bytes)),
            None if is_frame(cpu, offset, bytes) => MsiFrame.read(cpu, offset, bytes),
            None => 0,
        }
    }

    /// Executes commands of limited cost, or a part of a change of GITS_CTLR.Enabled. If more is due, the guest executes the store
    /// again: so an exit is bounded, and commands and changes are complete once the store is.
    #[cold]
    #[inline(never)]
    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        match offset.checked_sub(ITS) {
            Some(offset) => {
                if functions(cpu)?.write_its(cpu.vcpu().vm(), offset, bytes, value) {
                    store_again();
                }
                None
            }
            None if is_frame(cpu, offset, bytes) => MsiFrame.write(cpu, offset, bytes, value),
            None => None,
        }
    }
}

/// Has the guest execute its store again.
fn store_again() {
    // The exit's end adds this.
    let length = Esr(read_sysreg!(ESR_EL2)).instruction_bytes();
    write_sysreg!(ELR_EL2, read_sysreg!(ELR_EL2).wrapping_sub(length));
}

/// Redistributors of a VM with functions: those of `frames`, and their registers for LPIs.
pub struct LpiRedistributors(pub RedistributorFrames);

impl LpiRedistributors {
    /// The vCPU and the offset in its redistributor.
    fn split(&self, offset: u64) -> (usize, u64) {
        (self.0.first + (offset / map::GICR_STRIDE) as usize, offset % map::GICR_STRIDE)
    }
}

impl Device for LpiRedistributors {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        self.try_read(cpu, offset, bytes).unwrap_or(0)
    }

    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        let value = self.0.try_read(cpu, offset, bytes)?;
        let (vcpu, offset) = self.split(offset);
        Some(value | functions(cpu).map_or(0, |functions| functions.read_redistributor(vcpu, offset, bytes)))
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let end = self.0.write(cpu, offset, bytes, value);
        let (vcpu, offset) = self.split(offset);
        if functions(cpu)?.write_redistributor(cpu.vcpu().vm(), vcpu, offset, bytes, value) {
            store_again();
        }
        end
    }
}
