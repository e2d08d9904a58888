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
pub fn vms() -> Vms<'static> {
    BLOB.get().vms.clone()
}

/// Whether VM `number` of the machine's configuration serves devices, or others serve it. Not inlined, because the caller's frame would
/// have room for a VM's configuration.
#[inline(never)]
pub fn has_links(number: usize) -> bool {
    vms().nth(number).is_some_and(|vm| vm.has_links())
}

/// Looks up the function of Stile's that contains an offset in the image. Returns its name and the offset in it.
pub fn symbol(offset: u32) -> Option<(&'static str, u32)> {
    BLOB.try_get()?.symbols.lookup(offset)
}
