//! Files with snapshots of VMs (crate `stile-snapshot`).

mod reader;
mod writer;

#[cfg(test)]
pub(crate) use reader::tests::snapshot as example;
pub use reader::{Error, Reader, Section, Summary, size, verify};
pub use writer::{Writer, whole_package};
