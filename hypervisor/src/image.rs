//! The data behind Stile in its image.

use stile_blob::{Blob, Files, Vms};

use crate::once::Once;

static BLOB: Once<Blob<'static>> = Once::new();

/// Publishes the data, before any other CPU runs a vCPU.
pub fn set(blob: Blob<'static>) {
    BLOB.set(blob);
}

/// Files in the image.
pub fn files() -> Files<'static> {
    BLOB.get().files()
}

/// The VMs of the machine's configuration.
#[allow(dead_code, reason = "not every architecture has VMs that serve others")]
pub fn vms() -> Vms<'static> {
    BLOB.get().vms.clone()
}

/// Looks up the function of Stile's that contains an offset in the image. Returns its name and the offset in it.
pub fn symbol(offset: u32) -> Option<(&'static str, u32)> {
    BLOB.try_get()?.symbols.lookup(offset)
}
