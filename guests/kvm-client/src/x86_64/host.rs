//! Loading of the host's KVM modules.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::error::Error;

/// The modules in order of dependency, with their parameters. The emulator requires page-aligned
/// posted-interrupt descriptors, which KVM's are not.
const MODULES: [(&str, &std::ffi::CStr); 3] = [("irqbypass", c""), ("kvm", c""), ("kvm-intel", c"enable_apicv=0")];

/// Loads the modules.
pub fn prepare() -> Result<(), Error> {
    for (name, parameters) in MODULES {
        let path = format!("/{name}.ko");
        let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
        // SAFETY: the descriptor is open, and the string is NUL-terminated.
        let result = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters.as_ptr(), 0) };
        if result != 0 {
            return Err(format!("{path}: {}", std::io::Error::last_os_error()).into());
        }
    }
    Ok(())
}
