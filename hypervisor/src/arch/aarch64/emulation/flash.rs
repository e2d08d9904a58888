//! Guest accesses to the NOR flash that holds the variables of UEFI firmware.

use crate::arch::aarch64::host::cpu::Cpu;
use crate::device::bus::Device;
use crate::vm::power::End;

/// The flash of the accessing VM.
pub struct FlashWindow;

impl Device for FlashWindow {
    #[cold]
    #[inline(never)]
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        let vm = &cpu.vcpu().vm().arch;
        vm.flash.map_or(u64::MAX, |flash| flash.read(offset, bytes, |readable| vm.show_flash(flash, readable)))
    }

    /// Ignores stores of other sizes than 4 bytes, which the chips do not support.
    #[cold]
    #[inline(never)]
    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let vm = &cpu.vcpu().vm().arch;
        let flash = vm.flash.filter(|_| bytes == 4)?;
        flash.write(offset, value as u32, |readable| vm.show_flash(flash, readable));
        None
    }
}
