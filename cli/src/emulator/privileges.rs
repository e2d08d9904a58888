//! Privileges that the emulator does not inherit from root.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities};

/// With these capabilities a VM could make device nodes in a shared folder, give files there to other users, and give programs
/// capabilities.
const UNNEEDED: [CapabilitySet; 3] = [CapabilitySet::CHOWN, CapabilitySet::MKNOD, CapabilitySet::SETFCAP];

/// Starts the command without capabilities that it does not need, if this process is root's. Otherwise it has none in any case.
pub fn drop_unneeded(command: &mut Command) {
    let drop = || {
        for capability in UNNEEDED {
            // Fails for other users, and in containers whose root may not change the set.
            let _ = remove_capability_from_bounding_set(capability);
        }
        // A program that root starts also gets those of the inheritable set (capabilities(7)), which some containers fill.
        if let Ok(sets) = capabilities(None) {
            let inheritable = UNNEEDED.into_iter().fold(sets.inheritable, CapabilitySet::difference);
            let _ = set_capabilities(None, CapabilitySets { inheritable, ..sets });
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe functions may be called; the closure makes system calls (prctl) and neither
    // allocates nor takes a lock.
    unsafe { command.pre_exec(drop) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_fewer_capabilities() {
        let mut command = Command::new("grep");
        drop_unneeded(command.args(["^CapPrm", "/proc/self/status"]));
        let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let bits = u64::from_str_radix(shown.split_whitespace().last().unwrap(), 16).unwrap();
        let may_drop = rustix::thread::capabilities(None).unwrap().effective.contains(CapabilitySet::SETPCAP);
        assert!(!may_drop || UNNEEDED.iter().all(|capability| bits & capability.bits() == 0), "{shown}");
    }
}
