//! Hosts of the probe: Stile, its peers, and none.

mod figure;
mod kvm;
mod name;
mod native;
mod request;
mod stile;
mod xen;

use anyhow::Result;

use super::platform::{self, Platform};
pub use figure::{Figure, Outside};
pub use kvm::{Boot, Grouping, ProbeVm, archive_of, boot_arguments as client_boot_arguments, client_archive, pc_host, pc_host_arguments};
pub use name::{Host, Kvm, STILE, Technique};
pub use request::Request;
pub use stile::{Together, measure_together};

impl Host {
    /// Measures operations: one that the host does not have is left out.
    ///
    /// # Errors
    /// Something can't be built, fetched or run.
    pub fn measure(self, request: &Request<'_>) -> Result<Vec<Figure>> {
        match self {
            Self::Stile => stile::measure(request),
            Self::Without(technique) => {
                let operations: Vec<_> = request.operations.iter().filter(|operation| technique.concerns(operation)).copied().collect();
                let techniques = technique.switched_off(request.platform.arch, request.techniques);
                stile::measure(&Request { operations: &operations, techniques, ..*request })
            }
            Self::Native => native::measure(request),
            Self::Kvm(kvm) => kvm::measure(kvm, request),
            Self::Xen => xen::measure(request),
        }
    }
}

/// The host of this name, on any architecture.
pub fn by_name(name: &str) -> Option<Host> {
    platform::PLATFORMS.iter().flat_map(Platform::hosts).find(|host| host.name() == name)
}
