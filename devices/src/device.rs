//! A device of the module `stile-served`: its file, register page, page of events and window.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use stile_virtio::{EventPage, server};
use vm_memory::mmap::MmapRegion;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use crate::server::{Registers, read_pair};

/// Offsets of the page of events and of the window in the device's file; the register page is at 0.
const EVENTS_OFFSET: u64 = server::SIZE;
const WINDOW_OFFSET: u64 = 2 * server::SIZE;

/// An open device. While it is open, no other process can open it.
pub struct Device {
    file: File,
}

impl Device {
    /// Opens a device's file.
    ///
    /// # Errors
    /// The file does not exist, or another process has it open.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().read(true).write(true).open(path)? })
    }

    /// Maps the registers with the page of events, and the client's RAM at the client's addresses. All stay mapped until the process ends.
    ///
    /// # Errors
    /// The kernel refuses; the window's addresses wrap.
    pub fn map(&self) -> io::Result<(Page, GuestMemoryMmap)> {
        let registers = self.map_part(server::SIZE as usize, 0)?.cast();
        let page = Page { registers, events: self.map_part(server::SIZE as usize, EVENTS_OFFSET)?.cast() };
        let size = usize::try_from(read_pair(&page, server::WINDOW_SIZE)).map_err(io::Error::other)?;
        let base = GuestAddress(read_pair(&page, server::CLIENT_BASE));
        let window = self.map_part(size, WINDOW_OFFSET)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the mapping has this size, and nothing unmaps it.
        let region = unsafe { MmapRegion::build_raw(window.as_ptr(), size, protection.bits() as i32, flags.bits() as i32) };
        let region = GuestRegionMmap::new(region.map_err(io::Error::other)?, base).ok_or(io::ErrorKind::InvalidData)?;
        Ok((page, GuestMemoryMmap::from_regions(vec![region]).map_err(io::Error::other)?))
    }

    fn map_part(&self, size: usize, offset: u64) -> io::Result<NonNull<u8>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED, the kernel chooses an address at which nothing else is.
        let start = unsafe { mmap(ptr::null_mut(), size, protection, MapFlags::SHARED, &self.file, offset)? };
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Waits for an interrupt since the last call, or since the device was opened; or until `other` is readable. Returns whether there
    /// was an interrupt.
    ///
    /// # Errors
    /// The kernel's; `other` can't be used any more.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let Some(other) = other else { return self.read().map(|()| true) };
        let mut files = [PollFd::new(&self.file, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [device, other] = files.map(|file| file.revents());
        if other.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if device.is_empty() { Ok(false) } else { self.read().map(|()| true) }
    }

    fn read(&self) -> io::Result<()> {
        // A signal is no interrupt of the device, but the caller finds no events then.
        match (&self.file).read(&mut [0; 4]) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

/// A mapped register page, and the page of events.
pub struct Page {
    registers: NonNull<u32>,
    events: NonNull<EventPage>,
}

impl Page {
    fn register(&self, offset: u64) -> *mut u32 {
        assert!(offset.is_multiple_of(4) && offset < server::SIZE, "there is no register at {offset:#x}");
        self.registers.as_ptr().wrapping_byte_add(offset as usize)
    }
}

impl Registers for Page {
    fn read(&self, offset: u64) -> u32 {
        // SAFETY: the register is in the page, which stays mapped; its reads have no effect on memory of this process.
        let value = unsafe { load(self.register(offset)) };
        // Reads of the client's memory come after that of the event.
        fence(Ordering::SeqCst);
        value
    }

    fn write(&self, offset: u64, value: u32) {
        // The client, or Stile, sees what was stored before.
        fence(Ordering::SeqCst);
        // SAFETY: the register is in the page, which stays mapped; Stile takes writes of it, and changes no memory of this process.
        unsafe { store(self.register(offset), value) }
    }

    fn events(&self) -> &EventPage {
        // SAFETY: the page is larger than its content and stays mapped; Stile and this process access its words atomically only.
        unsafe { self.events.as_ref() }
    }
}

/// Loads by an instruction that Stile can emulate: without writeback, of one register (Arm ARM, ISS encoding of a data abort, ISV).
///
/// # Safety
/// As of [`ptr::read_volatile`].
#[cfg(target_arch = "aarch64")]
unsafe fn load(from: *const u32) -> u32 {
    let value: u32;
    // SAFETY: by the contract of `ptr::read_volatile`, `from` is valid for reads of a word, and aligned.
    unsafe { core::arch::asm!("ldr {0:w}, [{1}]", out(reg) value, in(reg) from, options(nostack, preserves_flags)) };
    value
}

/// Stores by an instruction that Stile can emulate; see [`load`].
///
/// # Safety
/// As of [`ptr::write_volatile`].
#[cfg(target_arch = "aarch64")]
unsafe fn store(to: *mut u32, value: u32) {
    // SAFETY: by the contract of `ptr::write_volatile`, `to` is valid for writes of a word, and aligned.
    unsafe { core::arch::asm!("str {0:w}, [{1}]", in(reg) value, in(reg) to, options(nostack, preserves_flags)) };
}

#[cfg(not(target_arch = "aarch64"))]
use ptr::{read_volatile as load, write_volatile as store};
