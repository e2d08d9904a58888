//! A device of the module `stile-served`: its file, register page, page of events and window.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use stile_virtio::{EventPage, server};
use vm_memory::mmap::MmapRegion;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use crate::server::{Registers, Sources, read_pair};

/// Offsets of the page of events and of the window in the device's file; the register page is at 0.
const EVENTS_OFFSET: u64 = server::SIZE;
const WINDOW_OFFSET: u64 = 2 * server::SIZE;

/// Attempts to open a device that another process has, and the pause between two.
const ATTEMPTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

/// The module's request for a file with the window only.
struct Window;

// SAFETY: the request has no argument, so that no pointer is passed; its result is a new file.
unsafe impl Ioctl for Window {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(b'S', 0x76)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::null_mut()
    }

    unsafe fn output_from_ptr(file: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the request succeeded; nobody else has its file.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }
}

/// An open device. While it is open, no other process can open it.
pub struct Device {
    file: File,
}

impl Device {
    /// Opens a device's file. Waits while another process has it: one that has ended may have left a back end, which is about to end.
    ///
    /// # Errors
    /// The file does not exist, or another process keeps it open.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut left = ATTEMPTS;
        loop {
            match OpenOptions::new().read(true).write(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && left != 0 => left -= 1,
                result => return Ok(Self { file: result? }),
            }
            thread::sleep(PAUSE);
        }
    }

    /// Type of the device (Virtio 1.2, section 5), by the client's configuration.
    ///
    /// # Errors
    /// The kernel's.
    pub fn kind(&self) -> io::Result<u32> {
        let registers = self.map_part(server::SIZE as usize, 0)?;
        // SAFETY: the register is within the page, aligned, and mapped; loads of it have no effect.
        let kind = unsafe { load(registers.as_ptr().wrapping_add(server::DEVICE_ID as usize).cast()) };
        // Mappings keep the device open.
        // SAFETY: the page was mapped above, and there is no reference to it.
        unsafe { munmap(registers.as_ptr().cast(), server::SIZE as usize)? };
        Ok(kind)
    }

    /// A file with the client's RAM only, for a back end. The device stays open while that is, or is mapped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn window(&self) -> io::Result<File> {
        // SAFETY: the module's request takes no argument, and accesses no memory of this process.
        let file = unsafe { ioctl(&self.file, Window)? };
        Ok(file.into())
    }

    /// Maps the registers with the page of events, and the client's RAM at the client's addresses. All stay mapped until the process ends.
    ///
    /// # Errors
    /// The kernel refuses; the window's addresses wrap.
    pub fn map(&self) -> io::Result<(Page, GuestMemoryMmap)> {
        let page = self.page()?;
        let size = usize::try_from(read_pair(&page, server::WINDOW_SIZE)).map_err(io::Error::other)?;
        let base = GuestAddress(read_pair(&page, server::CLIENT_BASE));
        let window = self.map_part(size, WINDOW_OFFSET)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the mapping has this size, and nothing unmaps it.
        let region = unsafe { MmapRegion::build_raw(window.as_ptr(), size, protection.bits() as i32, flags.bits() as i32) };
        let region = GuestRegionMmap::new(region.map_err(io::Error::other)?, base).ok_or(io::ErrorKind::InvalidData)?;
        Ok((page, GuestMemoryMmap::from_regions(vec![region]).map_err(io::Error::other)?))
    }

    /// Maps the registers with the page of events. Both stay mapped until the process ends.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn page(&self) -> io::Result<Page> {
        let registers = self.map_part(server::SIZE as usize, 0)?.cast();
        Ok(Page { registers, events: self.map_part(server::SIZE as usize, EVENTS_OFFSET)?.cast() })
    }

    fn map_part(&self, size: usize, offset: u64) -> io::Result<NonNull<u8>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED, the kernel chooses an address at which nothing else is.
        let start = unsafe { mmap(ptr::null_mut(), size, protection, MapFlags::SHARED, &self.file, offset)? };
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Waits for an interrupt since the last call, or since the device was opened; until one of the `others` is readable; or for the time
    /// `limit`, which has no effect without `others`. Returns whether there was an interrupt.
    ///
    /// # Errors
    /// The kernel's; one of the others can't be used any more.
    pub fn wait(&self, others: Sources<'_>, limit: Option<Duration>) -> io::Result<bool> {
        if others.iter().all(Option::is_none) {
            return self.read().map(|()| true);
        }
        let others = others.map(|file| file.unwrap_or(self.file.as_fd()));
        let mut files = [self.file.as_fd(), others[0], others[1]].map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
        let limit = limit.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        match poll(&mut files, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [device, others @ ..] = files.map(|file| file.revents());
        if others.iter().any(|events| events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)) {
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
