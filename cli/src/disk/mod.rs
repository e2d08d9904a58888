//! Disks with a Debian system: built from signed packages without root's rights, and read to find their kernel.
//!
//! Files of packages become a tar archive ([`root`]) with a database of unpacked packages ([`dpkg`]). A small VM under the emulator,
//! without Stile, unpacks the archive onto an empty file system and lets dpkg configure the packages ([`configure`]): maintainer scripts
//! are programs for Arm and expect to be root.

mod configure;
mod create;
mod dpkg;
mod initrd;
mod qemu_img;
mod root;
mod settings;
pub mod values;

pub use create::create;
