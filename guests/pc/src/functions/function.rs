//! A function of this VM: configuration space, and its BARs.

use core::arch::asm;
use core::ops::Range;

/// Configuration space of bus 0, and the window for BARs, as in the ACPI tables.
pub const ECAM: u64 = 0xe000_0000;
pub const WINDOW: Range<u64> = 0xc000_0000..ECAM;
/// Size of this VM's RAM. Behind it are other VMs and Stile on the machine.
pub const RAM: u64 = 64 << 20;
/// Range in which [`Function::connect`] places BARs: a part for each function.
const PLACES: u64 = WINDOW.start + (16 << 20);
const PART: u64 = 4 << 20;

/// Vendor and device of QEMU's `edu`.
pub const ID_OF_EDU: u32 = 0x11e8_1234;

/// Command register: memory decoding, bus mastering.
const MEMORY: u64 = 1 << 1;
const MASTER: u64 = 1 << 2;

/// Reads 1, 2, 4 or 8 bytes of a device, by one instruction.
pub fn read(address: u64, bytes: u64) -> u64 {
    let value: u64;
    // SAFETY: the first 4 GiB of linear addresses are mapped where they are. A read of this program's RAM changes nothing, and effects on
    // devices are the attack.
    unsafe {
        match bytes {
            1 => asm!("movzx {0:e}, byte ptr [{1}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)),
            2 => asm!("movzx {0:e}, word ptr [{1}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)),
            4 => asm!("mov {0:e}, [{1}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)),
            _ => asm!("mov {0}, [{1}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)),
        }
    }
    value
}

/// Writes 1, 2, 4 or 8 bytes of a device, by one instruction.
pub fn write(address: u64, bytes: u64, value: u64) {
    // SAFETY: callers name addresses of devices, or RAM that nothing else uses. Effects on devices are the attack.
    unsafe {
        match bytes {
            1 => asm!("mov [{0}], {1}", in(reg) address, in(reg_byte) value as u8, options(nostack, preserves_flags)),
            2 => asm!("mov [{0}], {1:x}", in(reg) address, in(reg) value, options(nostack, preserves_flags)),
            4 => asm!("mov [{0}], {1:e}", in(reg) address, in(reg) value, options(nostack, preserves_flags)),
            _ => asm!("mov [{0}], {1}", in(reg) address, in(reg) value, options(nostack, preserves_flags)),
        }
    }
}

/// A function.
#[derive(Clone, Copy)]
pub struct Function {
    /// Number of its device on bus 0.
    pub device: u64,
}

impl Function {
    /// Functions of this VM.
    pub fn all() -> impl Iterator<Item = Function> {
        (1..32).map(|device| Function { device }).filter(|function| function.read(0) != u32::MAX)
    }

    /// The first function with this vendor and device.
    pub fn find(id: u32) -> Option<Function> {
        Self::all().find(|function| function.read(0) == id)
    }

    /// Address of a register in configuration space.
    pub fn register(self, offset: u64) -> u64 {
        ECAM + (self.device << 15) + offset
    }

    /// Reads a register.
    pub fn read(self, offset: u64) -> u32 {
        read(self.register(offset), 4) as u32
    }

    /// Writes a register.
    pub fn write(self, offset: u64, value: u32) {
        write(self.register(offset), 4, value.into());
    }

    /// Turns memory decoding and bus mastering on or off.
    pub fn enable(self, on: bool) {
        write(self.register(4), 2, if on { MEMORY | MASTER } else { 0 });
    }

    /// Address where [`Function::connect`] places BAR `index`.
    pub fn place(self, index: u64) -> u64 {
        PLACES + self.device * PART + index * (1 << 20) / 2
    }

    /// Places all BARs within this function's part of the window, and turns decoding and bus mastering on.
    pub fn connect(self) {
        self.enable(false);
        let mut index = 0;
        while index < 6 {
            let at = 0x10 + 4 * index;
            self.write(at, self.place(index) as u32);
            let is_wide = self.read(at) & 0x7 == 4;
            if is_wide {
                self.write(at + 4, 0);
            }
            index += if is_wide { 2 } else { 1 };
        }
        self.enable(true);
    }

    /// The offset of a capability that satisfies a condition on its first register.
    pub fn capability(self, is: impl Fn(u32) -> bool) -> Option<u64> {
        let mut at = u64::from(self.read(0x34) & 0xfc);
        for _ in 0..48 {
            if at == 0 {
                return None;
            }
            let header = self.read(at);
            if is(header) {
                return Some(at);
            }
            at = u64::from(header >> 8 & 0xfc);
        }
        None
    }
}
