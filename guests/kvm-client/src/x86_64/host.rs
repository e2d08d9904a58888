//! The host's KVM, which is in modules.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::Error;

/// The modules in the order in which they need each other, with their parameters. The emulator wants descriptors of posted interrupts to
/// begin pages, and KVM's don't.
const MODULES: [(&str, &std::ffi::CStr); 3] = [("irqbypass", c""), ("kvm", c""), ("kvm-intel", c"enable_apicv=0")];

/// Loads them.
pub fn prepare() -> Result<(), Error> {
    for (name, parameters) in MODULES {
        let path = format!("/{name}.ko");
        let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
        // SAFETY: the descriptor is open, and the text ends with a NUL.
        let result = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters.as_ptr(), 0) };
        if result != 0 {
            return Err(format!("{path}: {}", std::io::Error::last_os_error()).into());
        }
    }
    Ok(())
}
