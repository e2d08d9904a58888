//! The blob: the data after the hypervisor in an image.
//!
//! It contains the virtual machines' configuration, every file loaded into their memory, and the names of the
//! hypervisor's functions for backtraces. `stile` writes it (feature `write`); the hypervisor reads it as
//! untrusted input: for any bytes, [`Blob::parse`] neither panics nor returns a configuration that violates a
//! rule.
//!
//! | part | length | content |
//! | --- | --- | --- |
//! | header | [`HEADER_LEN`] | [`Header`], little-endian |
//! | configuration | `config_len` | the number of virtual machines, each [`Vm`], [`Settings`] and the [text](Blob::text), in postcard's format |
//! | symbols | `symbols_len` | [`Symbols`]: may be empty |
//! | files | the rest, to `total_len` | each aligned to [`FILE_ALIGN`] from the blob's start |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "write"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod contents;
mod cpus;
mod error;
mod format;
mod header;
mod package;
mod served;
mod slots;
mod symbols;
mod topology;
mod validate;
mod vms;
#[cfg(any(test, feature = "write"))]
pub mod write;

#[cfg(test)]
mod tests;

pub use config::{
    Ablation, ApicVirtualization, BinaryPoint, CpuClass, DecodeCache, Gic, Interrupts, IpiAccess, Load, MAX_GICV2_VCPUS, MAX_LOADS,
    MAX_NAME_LEN, Mitigations, Mode, Nested, OnReset, Settings, Share, Techniques, TimerAccess, Vm, cpus_of,
};
pub use contents::{Files, Run, Source};
pub use error::{Error, Rule};
pub use format::{FILE_ALIGN, HEADER_LEN, MAGIC, VERSION};
pub use header::Header;
pub use package::{Checksum, Package, PackageError};
pub use served::{BALLOON, Served};
pub use slots::Slot;
pub use symbols::Symbols;
pub use topology::Topology;
pub use validate::is_name;
pub use vms::Vms;

/// A validated blob.
#[derive(Clone, Debug)]
pub struct Blob<'a> {
    bytes: &'a [u8],
    /// The settings of the whole machine.
    pub settings: Settings,
    /// The virtual machines' configurations.
    pub vms: Vms<'a>,
    /// The text of the configuration, if what the boot medium has of it may change the settings; else empty.
    pub text: &'a str,
    /// The hypervisor's functions.
    pub symbols: Symbols<'a>,
}

impl<'a> Blob<'a> {
    /// Parses the blob at the start of `bytes`; bytes after it are ignored.
    ///
    /// # Errors
    /// Any deviation from the writer's format: see [`Error`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let header = Header::parse(bytes)?;
        let total = usize::try_from(header.total_len).map_err(|_| Error::Truncated)?;
        let bytes = bytes.get(..total).ok_or(Error::Truncated)?;
        let (config, rest) =
            bytes.get(HEADER_LEN..).and_then(|rest| rest.split_at_checked(header.config_len as usize)).ok_or(Error::Length)?;
        let (symbols, _files) = rest.split_at_checked(header.symbols_len as usize).ok_or(Error::Length)?;
        if header.checksum(config) != header.crc {
            return Err(Error::Checksum);
        }
        let files = HEADER_LEN as u64 + u64::from(header.config_len) + u64::from(header.symbols_len);
        let vms = Vms::parse(config)?;
        let (settings, text) = validate::validate(vms.clone(), files, header.total_len)?;
        let symbols = Symbols::parse(symbols)?;
        Ok(Self { bytes, settings, vms, text, symbols })
    }

    /// Its files.
    pub fn files(&self) -> Files<'a> {
        Files { image: self.bytes, ..Files::default() }
    }

    /// A file's [`Load::len`] bytes. `None` if `load` lies outside this blob.
    pub fn file(&self, load: &Load) -> Option<&'a [u8]> {
        self.files().file(load)
    }

    /// The length of the whole blob in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Always false: a blob has at least a header.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
