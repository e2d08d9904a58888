//! Platform description from Multiboot's or PVH's information.

use core::ffi::{CStr, c_char};

use crate::arguments::Arguments;

/// The machine, and the requests of the command line.
pub struct Platform {
    /// Requests of the command line.
    pub arguments: Arguments,
}

/// The loader of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    /// Multiboot.
    Multiboot,
    /// Xen, by PVH.
    Xen,
}

impl Loader {
    /// Returns the loader with this word in EAX, and the address of its information in EBX; `None` for another one.
    pub fn of(word: u32, information: u32) -> Option<Self> {
        /// In EAX (Multiboot Specification 0.6.96, "Machine state").
        const MULTIBOOT: u32 = 0x2bad_b002;
        /// First word of the start information (Xen, "x86/HVM direct boot ABI").
        const PVH: u32 = 0x336e_c578;
        match word {
            MULTIBOOT => Some(Self::Multiboot),
            _ if read(information, 0) == PVH => Some(Self::Xen),
            _ => None,
        }
    }
}

impl Platform {
    /// Reads the loader's information, at its address.
    pub fn read(loader: Loader, information: u32) -> Self {
        Self { arguments: Arguments::parse(command_line(loader, information)) }
    }
}

/// A word of the loader's information.
fn read(information: u32, offset: u64) -> u32 {
    // SAFETY: the loader put its information there, nothing writes to it, and the first 4 GiB are mapped.
    unsafe { ((u64::from(information) + offset) as *const u32).read() }
}

/// The command line ("Boot information format"; "x86/HVM direct boot ABI", struct hvm_start_info).
fn command_line(loader: Loader, information: u32) -> &'static str {
    const HAS_COMMAND_LINE: u32 = 1 << 2;
    let address = match loader {
        Loader::Multiboot if read(information, 0) & HAS_COMMAND_LINE != 0 => read(information, 16),
        Loader::Multiboot => 0,
        // Below 4 GiB, as all that loaders of PVH pass.
        Loader::Xen => read(information, 24),
    };
    if address == 0 {
        return "";
    }
    // SAFETY: the loader put its information there, nothing writes to it, and the first 4 GiB are mapped; the text ends with a NUL.
    let text = unsafe { CStr::from_ptr(u64::from(address) as *const c_char) };
    text.to_str().unwrap_or("")
}
