//! A port of one of the kernel's bridges: a TAP device, which exists while this process does.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::frame::HEADER;
use crate::network::Port;

/// Size of an interface's name, with the byte 0 at its end.
const NAME: usize = 16;

const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
pub(crate) const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<i32>(b'T', 216);
const SIOCSIFFLAGS: Opcode = 0x8914;
const SIOCBRADDIF: Opcode = 0x89a2;

const IFF_UP: i16 = 1;
/// Ethernet frames, without flags of TUN's before them, but with the header of virtio.
const TAP: i16 = 0x0002 | 0x1000 | 0x4000;
const TUN_F_CSUM: usize = 1;

/// `struct ifreq` of Linux.
#[repr(C)]
struct Request {
    name: [u8; NAME],
    value: Value,
}

#[repr(C)]
union Value {
    flags: i16,
    index: i32,
    /// The largest member of Linux's union: `struct ifmap`.
    all: [u64; 3],
}

impl Request {
    fn new(name: &str, set: impl FnOnce(&mut Value)) -> io::Result<Self> {
        let mut request = Self { name: [0; NAME], value: Value { all: [0; 3] } };
        let text = request.name[..NAME - 1].get_mut(..name.len()).ok_or(io::ErrorKind::InvalidFilename)?;
        text.copy_from_slice(name.as_bytes());
        set(&mut request.value);
        Ok(request)
    }
}

/// A port of a bridge.
pub struct Tap {
    file: File,
}

impl Tap {
    /// Makes the device `name`, and has it forward frames as a port of `bridge`.
    ///
    /// # Errors
    /// There is no such bridge, or another process has a device of this name.
    pub fn new(name: &str, bridge: &str) -> io::Result<Self> {
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open("/dev/net/tun")?;
        let mut request = Request::new(name, |value| value.flags = TAP)?;
        // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, whose layout and size are those of `Request`.
        unsafe { ioctl(&file, Updater::<TUNSETIFF, Request>::new(&mut request))? };
        // SAFETY: TUNSETVNETHDRSZ reads an int (Linux, tun.h), which `Setter` passes by its address.
        unsafe { ioctl(&file, Setter::<TUNSETVNETHDRSZ, i32>::new(HEADER as i32))? };
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let index = netdevice::name_to_index(&socket, name)?;
        let request = Request::new(bridge, |value| value.index = index as i32)?;
        // SAFETY: SIOCBRADDIF reads a `struct ifreq`; see above.
        unsafe { ioctl(&socket, Setter::<SIOCBRADDIF, Request>::new(request))? };
        let request = Request::new(name, |value| value.flags = IFF_UP)?;
        // SAFETY: SIOCSIFFLAGS reads a `struct ifreq`; see above.
        unsafe { ioctl(&socket, Setter::<SIOCSIFFLAGS, Request>::new(request))? };
        Ok(Self { file })
    }
}

impl Port for Tap {
    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn send(&mut self, frame: &[u8]) {
        // The kernel refuses frames whose header makes no sense.
        let _ = self.file.write(frame);
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        // An error persists: the next wait for a frame reports it.
        self.file.read(buffer).ok()
    }

    fn accept_partial_checksums(&mut self, accepted: bool) -> io::Result<()> {
        let offloads = if accepted { TUN_F_CSUM } else { 0 };
        // SAFETY: TUNSETOFFLOAD takes flags as an integer, and accesses no memory of this process.
        unsafe { ioctl(&self.file, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads))? };
        Ok(())
    }
}
