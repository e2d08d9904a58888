//! Files with snapshots of VMs (crate `stile-snapshot`).

mod reader;
mod writer;

pub use reader::{Error, Reader, Section, Summary, verify};
pub use writer::{Writer, whole_package};
