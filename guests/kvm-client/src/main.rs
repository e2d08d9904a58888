//! A minimal KVM VMM: `/init` of a host kernel's initial RAM file system, which runs VMs one after the other,
//! prints their output, and powers the machine off.
//!
//! Its arguments are the VMs' names; `/NAME.vm` describes one: see [`description`]. On Arm, the argument
//! `syscalls=N` measures the cost of a system call of a host program.

#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
mod arch;
mod cpu;
mod description;
mod error;
mod init;
mod memory;
#[cfg(target_arch = "aarch64")]
mod syscalls;
mod vm;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [word, name] if word == init::CHILD => vm::run(name),
        #[cfg(target_arch = "aarch64")]
        [word, count] if word == syscalls::WORD => count.parse().map_err(error::Error::from).and_then(syscalls::measure),
        names => init::run(names),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("kvm-client: {error}");
            ExitCode::FAILURE
        }
    }
}
