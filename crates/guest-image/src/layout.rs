//! Placement of the device tree and the initial RAM file system in RAM.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use stile_board::map;
use stile_config::units;
use thiserror::Error;

use super::Kernel;

/// Linux maps the device tree by one block of this size: it must not cross a boundary.
const BLOCK: u64 = 2 << 20;

/// Initial RAM file systems begin at a page of any size that a kernel may use.
pub const INITRD_ALIGN: u64 = 64 << 10;

/// Kernels before 4.2 find the device tree only this near to themselves.
const NEAR: u64 = 512 << 20;

/// Guest-physical addresses of everything except the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The device tree: in whole pages.
    pub dtb: Range<u64>,
    /// The initial RAM file system, to the byte.
    pub initrd: Option<Range<u64>>,
}

/// Too little RAM.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the kernel ({}){} and the device tree ({}) do not fit into {} of RAM; expected at least {}",
    units::rounded_size(*.kernel),
    .initrd.map(|len| format!(", the initrd ({})", units::rounded_size(len))).unwrap_or_default(),
    units::rounded_size(*.dtb),
    units::size(*.ram),
    units::size(self.enough())
)]
pub struct NoRoom {
    /// RAM, in bytes.
    ram: u64,
    /// The kernel's end, in bytes from RAM's start.
    kernel: u64,
    initrd: Option<u64>,
    dtb: u64,
}

impl NoRoom {
    /// RAM that would do, in bytes.
    fn enough(&self) -> u64 {
        let initrd = self.initrd.unwrap_or(0) + INITRD_ALIGN;
        (self.kernel + initrd + self.dtb).next_multiple_of(map::RAM_GRANULE) + map::RAM_GRANULE
    }
}

/// EDK2 for QEMU's board expects the device tree at the first byte of RAM, and has its first stack 496 KiB behind that
/// (ArmVirtQemu.dsc, PcdDeviceTreeInitialBaseAddress and PcdCPUCoresStackBase).
pub fn before_firmware(dtb: u64) -> Layout {
    Layout { dtb: map::RAM_BASE..map::RAM_BASE + dtb.next_multiple_of(4096), initrd: None }
}

/// Finds places for a device tree and an initial RAM file system of these lengths beside `kernel`, as high as they may be: a kernel grows
/// upwards.
///
/// # Errors
/// [`NoRoom`].
pub fn place(kernel: &Kernel<'_>, ram: u64, dtb: u64, initrd: Option<u64>) -> Result<Layout, NoRoom> {
    let taken: Vec<Range<u64>> = kernel.segments.iter().map(super::Segment::memory).collect();
    let end = map::RAM_BASE + ram;
    let all = map::RAM_BASE..end;
    // A kernel of unknown memory size gets the lower half exclusively. A flat binary's data may end anywhere.
    let first = if kernel.size_known {
        map::RAM_BASE..end.min(map::RAM_BASE + NEAR)
    } else {
        map::RAM_BASE + (ram / 2).next_multiple_of(4096)..end
    };
    let dtb_len = dtb.next_multiple_of(4096);
    [first, all].iter().find_map(|window| place_in(window, &taken, dtb_len, initrd)).ok_or_else(|| NoRoom {
        ram,
        kernel: taken.last().map_or(0, |last| last.end - map::RAM_BASE),
        initrd,
        dtb: dtb_len,
    })
}

fn place_in(window: &Range<u64>, taken: &[Range<u64>], dtb_len: u64, initrd_len: Option<u64>) -> Option<Layout> {
    // In a separate block if memory is plentiful, else page by page in one block.
    let plenty = window.end - window.start >= 32 * BLOCK;
    let dtb = if plenty && dtb_len <= BLOCK { highest(window, taken, BLOCK, BLOCK)? } else { highest_in_block(window, taken, dtb_len)? };
    let dtb = dtb..dtb + dtb_len;
    let initrd = match initrd_len {
        Some(len) => {
            let dtb_end = if plenty { dtb.start + BLOCK } else { dtb.end };
            let mut taken = taken.to_vec();
            taken.push(dtb.start..dtb_end);
            let align = if plenty { INITRD_ALIGN } else { 4096 };
            let start = highest(window, &taken, len, align)?;
            Some(start..start + len)
        }
        None => None,
    };
    Some(Layout { dtb, initrd })
}

/// The highest multiple of `align` in `window` from which `len` bytes are free.
fn highest(window: &Range<u64>, taken: &[Range<u64>], len: u64, align: u64) -> Option<u64> {
    let mut end = window.end;
    loop {
        let start = end.checked_sub(len)? / align * align;
        if start < window.start {
            return None;
        }
        match taken.iter().filter(|taken| taken.start < start + len && start < taken.end).map(|taken| taken.start).min() {
            Some(lower) => end = lower,
            None => return Some(start),
        }
    }
}

/// The highest page in `window` from which `len` bytes are free and in one block.
fn highest_in_block(window: &Range<u64>, taken: &[Range<u64>], len: u64) -> Option<u64> {
    let mut end = window.end;
    loop {
        let start = highest(&(window.start..end), taken, len, 4096)?;
        let boundary = (start + len - 1) / BLOCK * BLOCK;
        if boundary <= start {
            return Some(start);
        }
        // Across a boundary: end there at the latest.
        end = boundary;
    }
}
