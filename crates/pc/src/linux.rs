//! Linux's x86 boot protocol, entered in 64-bit mode (*The Linux/x86 Boot Protocol*, "64-bit BOOT PROTOCOL").

use crate::bytes::{get_u32, put};
use crate::{Module, Range};
use alloc::vec;
use alloc::vec::Vec;

/// Offsets in the zero page, most of them also in the kernel's file ("The Real-Mode Kernel Header", "zero-page").
mod field {
    pub const RSDP: usize = 0x070;
    pub const RAMDISK_HIGH: usize = 0x0c0;
    pub const RAMDISK_SIZE_HIGH: usize = 0x0c4;
    pub const COMMAND_LINE_HIGH: usize = 0x0c8;
    pub const E820_ENTRIES: usize = 0x1e8;
    pub const SETUP_SECTORS: usize = 0x1f1;
    pub const JUMP_DISTANCE: usize = 0x201;
    pub const MAGIC: usize = 0x202;
    pub const VERSION: usize = 0x206;
    pub const LOADER: usize = 0x210;
    pub const RAMDISK: usize = 0x218;
    pub const RAMDISK_SIZE: usize = 0x21c;
    pub const COMMAND_LINE: usize = 0x228;
    pub const EXTENDED_FLAGS: usize = 0x236;
    pub const COMMAND_LINE_SIZE: usize = 0x238;
    pub const PREFERRED_ADDRESS: usize = 0x258;
    pub const INIT_SIZE: usize = 0x260;
    pub const E820: usize = 0x2d0;
}

const MAGIC: u32 = u32::from_le_bytes(*b"HdrS");
/// The first version of the protocol that says whether a kernel has a 64-bit entry.
const VERSION: u32 = 0x020c;
/// The kernel has an entry for 64-bit mode, 0x200 after its start.
const HAS_64_BIT_ENTRY: u32 = 1 << 0;
const SECTOR: usize = 512;
const ENTRY: u64 = 0x200;
const E820_ENTRY: usize = 20;
/// Entries that the zero page has room for.
const E820_MAX: usize = 128;
/// A loader without a number of its own.
const LOADER_UNDEFINED: u8 = 0xff;

/// The size of the zero page in bytes.
pub const ZERO_PAGE: usize = 4096;

/// Why a file is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is no bzImage.
    NotLinux,
    /// Its boot protocol is older than 2.12, or has no 64-bit entry.
    TooOld,
    /// It ends before its header says.
    Truncated,
    /// There are more ranges of memory than the zero page holds.
    TooManyRanges,
}

/// A bzImage.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    setup: &'a [u8],
    /// What is to be placed at [`address`](Self::address).
    pub image: &'a [u8],
}

impl<'a> Kernel<'a> {
    /// Looks at a kernel's file.
    pub fn parse(file: &'a [u8]) -> Result<Self, Error> {
        if get_u32(file, field::MAGIC) != MAGIC {
            return Err(Error::NotLinux);
        }
        if get_u32(file, field::VERSION) & 0xffff < VERSION || get_u32(file, field::EXTENDED_FLAGS) & HAS_64_BIT_ENTRY == 0 {
            return Err(Error::TooOld);
        }
        let sectors = match file.get(field::SETUP_SECTORS) {
            // As very old kernels mean it.
            None | Some(0) => 4,
            Some(&sectors) => usize::from(sectors),
        };
        let (setup, image) = file.split_at_checked((sectors + 1) * SECTOR).ok_or(Error::Truncated)?;
        Ok(Self { setup, image })
    }

    /// Where the image goes.
    pub fn address(&self) -> u64 {
        u64::from(get_u32(self.setup, field::PREFERRED_ADDRESS + 4)) << 32 | u64::from(get_u32(self.setup, field::PREFERRED_ADDRESS))
    }

    /// The bytes that must be free from [`address`](Self::address) on.
    pub fn size(&self) -> u64 {
        get_u32(self.setup, field::INIT_SIZE).into()
    }

    /// RIP at the start, where the image was placed at [`address`](Self::address). RSI holds the zero page's address; paging is on and maps it all
    /// to itself, flat segments 0x10 (code) and 0x18 (data) are loaded, interrupts are off.
    pub fn entry(&self) -> u64 {
        self.address().wrapping_add(ENTRY)
    }

    /// The most bytes of a command line, without its ending zero.
    pub fn command_line_size(&self) -> usize {
        get_u32(self.setup, field::COMMAND_LINE_SIZE) as usize
    }

    /// The zero page: 4 KiB, at any address. `command_line` is that of a text ended by a zero, `rsdp` that of the ACPI tables.
    pub fn zero_page(&self, memory: &[Range], command_line: u64, initrd: Option<Module>, rsdp: u64) -> Result<Vec<u8>, Error> {
        if memory.len() > E820_MAX {
            return Err(Error::TooManyRanges);
        }
        let mut page = vec![0; ZERO_PAGE];
        // The header ends where its first jump leads.
        let end = field::MAGIC + usize::from(*self.setup.get(field::JUMP_DISTANCE).ok_or(Error::Truncated)?);
        put(&mut page, field::SETUP_SECTORS, self.setup.get(field::SETUP_SECTORS..end).ok_or(Error::Truncated)?);
        put(&mut page, field::LOADER, &[LOADER_UNDEFINED]);
        let mut split = |low, high, value: u64| {
            put(&mut page, low, &(value as u32).to_le_bytes());
            put(&mut page, high, &((value >> 32) as u32).to_le_bytes());
        };
        split(field::COMMAND_LINE, field::COMMAND_LINE_HIGH, command_line);
        if let Some(initrd) = initrd {
            split(field::RAMDISK, field::RAMDISK_HIGH, initrd.start);
            split(field::RAMDISK_SIZE, field::RAMDISK_SIZE_HIGH, initrd.size);
        }
        put(&mut page, field::RSDP, &rsdp.to_le_bytes());
        put(&mut page, field::E820_ENTRIES, &[memory.len() as u8]);
        for (i, range) in memory.iter().enumerate() {
            let at = field::E820 + i * E820_ENTRY;
            put(&mut page, at, &range.start.to_le_bytes());
            put(&mut page, at + 8, &range.size.to_le_bytes());
            put(&mut page, at + 16, &(range.kind as u32).to_le_bytes());
        }
        Ok(page)
    }
}
