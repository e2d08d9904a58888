//! Disks with a Debian system: built from signed packages without root's rights, and started by the kernel that is on them.
//!
//! Files of packages become a tar archive ([`root`]) with a database of unpacked packages ([`dpkg`]). A small VM under the emulator,
//! without Stile, unpacks the archive onto an empty file system and lets dpkg configure the packages ([`configure`]): maintainer scripts
//! are programs for the disk's architecture and expect to be root.

pub mod boot;
mod bridge;
mod configure;
pub mod contents;
mod create;
mod dpkg;
pub mod drive;
pub mod errors;
pub mod folder;
pub mod functions;
pub mod in_memory;
mod initrd;
pub mod network;
pub mod partition;
mod qemu_img;
mod root;
mod settings;
pub mod sharing;
pub mod system;
pub mod values;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::config::Arch;
pub use create::create;

/// A short word that changes with the architecture, and with the scripts and settings that disks are built with.
pub fn recipe(arch: Arch) -> String {
    let system = settings::System { hostname: "", uuid: "", keys: "", suite: "", mirror: "", security: None };
    let settings = format!("{:?}", settings::settings(&system));
    let digest = Sha256::digest([configure::INIT, initrd::DISK, create::base(arch).join(" ").as_str(), settings.as_str()].concat());
    HEXLOWER.encode(&digest[..6])
}
