//! The machine's configuration: three VMs with one file each, and two, a client and its server, that are removed.

use stile_blob::{OnReset, Settings, Techniques, write};
use stile_board::map::RAM_BASE;
use stile_sched::CpuSet;

use super::VCPUS;
use crate::vm::Change;

/// Numbers of the VMs that are removed.
pub const CLIENT: usize = VCPUS.len();
pub const SERVER: usize = CLIENT + 1;

/// Type of a block device (Virtio 1.2, section 5).
const BLOCK: u32 = 2;

/// The changes by the configuration file of the boot medium.
pub fn changes() -> Vec<Change> {
    (0..=SERVER).map(|number| if number < CLIENT { Change::None } else { Change::Removed }).collect()
}

/// Returns the blob as an image has it, at the start of a page.
pub fn blob() -> &'static [u8] {
    let names = ["one", "two", "three", "client", "server"];
    let mut machine = write::Machine {
        settings: Settings { report_exits: true, slice_us: 100, mitigations: Default::default() },
        vms: Vec::new(),
        text: "",
    };
    let files: Vec<_> = (0..names.len()).map(|vm| write::File { vm, bytes: b"a guest", gpa: RAM_BASE, mem_len: 4096 }).collect();
    for (name, vcpus) in names.into_iter().zip(VCPUS.into_iter().chain([1; 2])) {
        let served = (name == "client").then_some(stile_blob::Served { server: SERVER as u8, device: BLOCK });
        let vm = stile_blob::Vm {
            name,
            memory: 2 << 20,
            ram_base: RAM_BASE,
            firmware: 0,
            disks: heapless::Vec::new(),
            vcpus,
            topology: None,
            class: None,
            cpus: CpuSet::EMPTY,
            pinned: name == "one",
            share: stile_blob::Share::default(),
            entry: RAM_BASE,
            info: RAM_BASE,
            mode: stile_blob::Mode::Reset,
            loads: heapless::Vec::new(),
            on_reset: OnReset::Restart,
            techniques: Techniques::default(),
            functions: heapless::Vec::new(),
            served: served.into_iter().collect(),
            serves: (name == "server").into(),
            gic: stile_blob::Gic::default(),
        };
        machine.vms.push(vm);
    }
    let bytes = write::blob(&machine, &write::symbols(&[]), &files).unwrap();
    let memory = Vec::leak(vec![0u128; bytes.len() / 16 + 512]);
    let start = (memory.as_mut_ptr() as usize).next_multiple_of(4096) as *mut u8;
    // SAFETY: `memory` has at least `bytes.len()` bytes from the next start of a page on, is never freed, and has no other reference.
    unsafe {
        start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        std::slice::from_raw_parts(start, bytes.len())
    }
}
