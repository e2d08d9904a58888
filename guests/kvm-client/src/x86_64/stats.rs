//! KVM's own counters of a vCPU (Linux, "The Definitive KVM API Documentation", KVM_GET_STATS_FD).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use kvm_ioctls::VcpuFd;

use crate::error::Error;

/// `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::c_int = 0xaece;

/// Counters by name: those whose names end with `exits`, including the total.
pub struct Stats(BTreeMap<String, u64>);

impl Stats {
    /// Reads the counters. The call itself causes no exit.
    pub fn read(vcpu: &VcpuFd) -> Result<Self, Error> {
        // SAFETY: the request takes no argument and changes nothing.
        let fd = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_STATS_FD, 0) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: the descriptor was just created, and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        let header = words(&file, 0, 6)?;
        let [_, name_size, count, _, descriptors, data] = header[..] else { return Err("no header of counters".into()) };
        let mut counters = BTreeMap::new();
        for index in 0..count {
            // struct kvm_stats_desc: flags, exponent and size, offset, bucket size, name.
            let at = u64::from(descriptors) + u64::from(index) * u64::from(16 + name_size);
            let mut descriptor = vec![0; 16 + name_size as usize];
            file.read_exact_at(&mut descriptor, at)?;
            let name: String = descriptor[16..].iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
            if name.ends_with("exits") {
                let offset = u32::from_le_bytes([descriptor[8], descriptor[9], descriptor[10], descriptor[11]]);
                let mut value = [0; 8];
                file.read_exact_at(&mut value, u64::from(data) + u64::from(offset))?;
                counters.insert(name, u64::from_le_bytes(value));
            }
        }
        Ok(Self(counters))
    }

    /// A line of JSON with the increments since `begin`, which was read in the exit that began the
    /// measurement; the exit that ended it is not counted.
    pub fn since(&self, begin: &Self) -> String {
        let more = |name: &str| self.0.get(name).zip(begin.0.get(name)).map_or(0, |(now, then)| now.saturating_sub(*then));
        format!("{{\"exits\":{}}}", more("exits").saturating_sub(1))
    }
}

fn words(file: &File, at: u64, count: usize) -> Result<Vec<u32>, Error> {
    let mut bytes = vec![0; 4 * count];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}
