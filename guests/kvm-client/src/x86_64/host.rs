//! Loading of the host's KVM modules.

use std::ffi::CStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use crate::error::Error;

/// The modules in order of dependency. The host has those that its kernel and its processor need.
const MODULES: [&str; 6] = ["irqbypass", "rng-core", "ccp", "kvm", "kvm-intel", "kvm-amd"];

/// Parameters of a module. The emulator requires page-aligned posted-interrupt descriptors, which KVM's are not; a hypervisor does not.
fn parameters(name: &str) -> &'static CStr {
    let is_guest = core::arch::x86_64::__cpuid(1).ecx >> 31 != 0;
    if name == "kvm-intel" && !is_guest { c"enable_apicv=0" } else { c"" }
}

/// Loads the modules, unless the system has done so.
pub fn prepare() -> Result<(), Error> {
    // The device may be there without its driver.
    if File::open("/dev/kvm").is_ok() {
        return Ok(());
    }
    for name in MODULES {
        let path = format!("/{name}.ko");
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            file => file.map_err(|error| format!("{path}: {error}"))?,
        };
        // SAFETY: the descriptor is open, and the string is NUL-terminated.
        let result = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters(name).as_ptr(), 0) };
        if result != 0 {
            return Err(format!("{path}: {}", std::io::Error::last_os_error()).into());
        }
    }
    Ok(())
}
