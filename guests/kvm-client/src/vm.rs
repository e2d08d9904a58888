//! A VM with the board's memory map: RAM, interrupt controllers, a UART, vCPUs.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::Kvm;

use crate::arch::{self, Devices};
use crate::cpu;
use crate::description::Description;
use crate::error::Error;
use crate::memory::Ram;

/// Runs a VM until it ends. Each vCPU has the CPU of its number, or all have the CPU that follows an `@` in the name.
pub fn run(name: &str) -> Result<(), Error> {
    let (name, cpu) = match name.split_once('@') {
        Some((name, cpu)) => (name, Some(cpu.parse()?)),
        None => (name, None),
    };
    let path = format!("/{name}.vm");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let description = Description::parse(&text)?;
    let mut ram = Ram::new(description.memory)?;
    for (file, place) in &description.loads {
        ram.load(*place, file)?;
    }

    let kvm = Kvm::new()?;
    let vm = Arc::new(kvm.create_vm()?);
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: arch::RAM,
        memory_size: ram.len() as u64,
        userspace_addr: ram.address(),
    };
    // SAFETY: the region stays mapped as long as the process lives, and no reference to it is used from now
    // on.
    unsafe { vm.set_user_memory_region(region)? };
    let fds = arch::vcpus(&kvm, &vm, &description)?;
    let devices = Arc::new(Devices::new(vm, &description)?);

    let (ended, end) = channel();
    for (index, mut fd) in fds.into_iter().enumerate() {
        let (ended, devices) = (ended.clone(), devices.clone());
        thread::spawn(move || {
            cpu::pin(cpu.unwrap_or(index));
            let _ = ended.send(devices.run(&mut fd));
        });
    }
    drop(ended);
    // The first vCPU thread to end is the one that powered off. The others end with the process.
    let result = end.recv()?;
    devices.finish();
    result
}
