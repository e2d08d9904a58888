//! The smallest KVM host there is: `/init` of a host kernel's initial RAM file system, which starts the probe in VMs, one after the other,
//! prints what it prints, and turns the machine off.
//!
//! Its arguments are the numbers of vCPUs of the VMs. `/probe` is a flat image, `/vm-N.dtb` the device tree of a VM with N vCPUs.

mod init;
mod memory;
mod uart;
mod vcpu;
mod vm;

use std::process::ExitCode;

/// Why there is no VM: a sentence.
type Error = Box<dyn std::error::Error + Send + Sync>;

/// The argument that makes this program the host of one VM.
const CHILD: &str = "vm";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [word, vcpus] if word == CHILD => vm::run(vcpus),
        counts => init::run(counts),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("kvm-client: {error}");
            ExitCode::FAILURE
        }
    }
}
