//! A measurement under a host.

use std::path::Path;

use stile_blob::{Gic, Techniques};

use crate::operation::Operation;
use crate::platform::Platform;

/// A measurement: operations, probe and emulated machine.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The architecture.
    pub platform: &'static Platform,
    /// The probe: on Arm a flat image, on a PC a Multiboot program.
    pub probe: &'a [u8],
    /// The emulated CPUs' model.
    pub cpu: &'a str,
    /// The operations.
    pub operations: &'a [Operation],
    /// Number of iterations; slow operations divide it.
    pub iterations: u32,
    /// The plugin that counts exits and instructions outside of the guest; they are not counted without it.
    pub plugin: Option<&'a Path>,
    /// The techniques of the VM, under Stile.
    pub techniques: Techniques,
    /// Arm: the machine's interrupt controller, under Stile.
    pub gic: Gic,
    /// Receives the host and the operations before each run.
    pub progress: &'a dyn Fn(String),
}
