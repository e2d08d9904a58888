//! VMs for measurements.

use stile_blob::{OnReset, Share, Techniques};

use crate::budget::Budget;
use crate::config::{InitrdSource, KernelSource, VmConfig};

/// A VM with defaults, which ends when it resets. `memory` is in bytes.
pub fn vm(name: &str, kernel: KernelSource, memory: u64, vcpus: u16) -> VmConfig {
    VmConfig {
        name: name.into(),
        kernel,
        initrd: InitrdSource::None,
        append: String::new(),
        memory,
        vcpus,
        topology: None,
        class: None,
        cpus: stile_board::CpuSet::EMPTY,
        pinned: false,
        share: Share::default(),
        budget: Budget::default(),
        on_reset: OnReset::Stop,
        exec: None,
        domains: Vec::new(),
        functions: Vec::new(),
        disks: Vec::new(),
        memory_disks: Vec::new(),
        system_disk: None,
        networks: Vec::new(),
        folders: Vec::new(),
        served_disks: Vec::new(),
        served_folders: Vec::new(),
        served: Vec::new(),
        served_networks: Vec::new(),
        cid: None,
        forwards: Vec::new(),
        console: None,
        serves: 0,
        gic: stile_blob::Gic::V3,
        techniques: Techniques::default(),
    }
}
