//! Platform description from Multiboot's information.

use crate::arguments::Arguments;

/// The machine, and the requests of the command line.
pub struct Platform {
    /// Requests of the command line.
    pub arguments: Arguments,
}

impl Platform {
    /// Reads Multiboot's information, at its address.
    pub fn read(information: u32) -> Self {
        Self { arguments: Arguments::parse(command_line(u64::from(information))) }
    }
}

/// The command line in Multiboot's information ("Boot information format").
fn command_line(information: u64) -> &'static str {
    const HAS_COMMAND_LINE: u32 = 1 << 2;
    // SAFETY: the loader put its information there, nothing writes to it, and the first 4 GiB are mapped.
    let word = |at: u64| unsafe { ((information + at) as *const u32).read() };
    if word(0) & HAS_COMMAND_LINE == 0 {
        return "";
    }
    // SAFETY: the loader put its information there, nothing writes to it, and the first 4 GiB are mapped; the text ends with a NUL.
    let text = unsafe { core::ffi::CStr::from_ptr(u64::from(word(16)) as *const core::ffi::c_char) };
    text.to_str().unwrap_or("")
}
