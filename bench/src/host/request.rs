//! A measurement under a host.

use std::path::Path;

use stile_blob::Techniques;

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
    /// How often each runs; some run less often.
    pub iterations: u32,
    /// The plugin that counts exits and what runs outside of the guest; nothing without it.
    pub plugin: Option<&'a Path>,
    /// The techniques of the VM, under Stile.
    pub techniques: Techniques,
    /// Told before each run: which host, and what is measured.
    pub progress: &'a dyn Fn(String),
}
