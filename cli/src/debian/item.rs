//! Items of Debian's archive: the package of each, and the files that are taken out of it.

use super::apt::debian_name;
use super::deb::Wanted;
use super::index::{self, Choice, Package};
use super::modules;
use crate::config::{Arch, DebianKernel};

/// An item from Debian's archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// The newest kernel that stable's backports offer.
    NewestKernel,
    /// The kernel of Debian 13.
    Kernel6_12,
    /// The kernel of Debian 12.
    Kernel6_1,
    /// Kernel and initial RAM file system of Debian 13's text installer.
    Installer,
    /// Drivers that are modules of the newest kernel.
    NewestDrivers,
    /// Drivers that are modules of the kernel of Debian 13.
    Drivers6_12,
    /// Drivers that are modules of the kernel of Debian 12.
    Drivers6_1,
    /// The statically linked busybox.
    Busybox,
    /// The kernel of Debian 13 in the general flavour, which can be Xen's first domain, for x86-64.
    General6_12,
    /// Drivers that are modules of the general kernel of Debian 13.
    GeneralDrivers6_12,
    /// Xen of Debian 13.
    Xen,
    /// UEFI firmware (EDK2) of Debian 13.
    Edk2,
    /// Device trees that come with the kernel of Debian 12.
    DeviceTrees6_1,
    /// The kernel of Debian 12 with the modules of its KVM for VMX, for x86-64.
    KvmHost6_1,
    /// The kernel of Debian 12 with the modules of its KVM for AMD-V.
    KvmHostAmd6_1,
}

impl Item {
    /// All items for an architecture.
    pub fn all(arch: Arch) -> &'static [Self] {
        match arch {
            Arch::Aarch64 => &[
                Self::NewestKernel,
                Self::NewestDrivers,
                Self::Kernel6_12,
                Self::Drivers6_12,
                Self::Kernel6_1,
                Self::Drivers6_1,
                Self::DeviceTrees6_1,
                Self::Installer,
                Self::Busybox,
                Self::Xen,
                Self::Edk2,
            ],
            Arch::X86_64 => &[
                Self::NewestKernel,
                Self::NewestDrivers,
                Self::Kernel6_12,
                Self::Drivers6_12,
                Self::Kernel6_1,
                Self::Drivers6_1,
                Self::General6_12,
                Self::GeneralDrivers6_12,
                Self::Installer,
                Self::Busybox,
                Self::Xen,
                Self::KvmHost6_1,
                Self::KvmHostAmd6_1,
            ],
        }
    }

    /// Returns the item of a kernel, and the item of its modules if it has any.
    pub(super) const fn of(kernel: DebianKernel, arch: Arch) -> (Self, Option<Self>) {
        match (kernel, arch) {
            (DebianKernel::Newest, _) => (Self::NewestKernel, Some(Self::NewestDrivers)),
            (DebianKernel::General, Arch::X86_64) => (Self::General6_12, Some(Self::GeneralDrivers6_12)),
            (DebianKernel::V6_12 | DebianKernel::General, _) => (Self::Kernel6_12, Some(Self::Drivers6_12)),
            (DebianKernel::V6_1, _) => (Self::Kernel6_1, Some(Self::Drivers6_1)),
            (DebianKernel::Installer, _) => (Self::Installer, None),
            (DebianKernel::Xen, _) => (Self::Xen, None),
            (DebianKernel::Edk2, _) => (Self::Edk2, None),
        }
    }

    /// The item's name in the cache, and the word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewestKernel => "debian",
            Self::Kernel6_12 => "debian:6.12",
            Self::Kernel6_1 => "debian:6.1",
            Self::Installer => "debian-installer",
            Self::NewestDrivers => "debian-drivers",
            Self::Drivers6_12 => "debian-drivers:6.12",
            Self::Drivers6_1 => "debian-drivers:6.1",
            Self::General6_12 => "debian-general:6.12",
            Self::GeneralDrivers6_12 => "debian-general-drivers:6.12",
            Self::Busybox => "busybox",
            Self::Xen => "xen",
            Self::Edk2 => "edk2",
            Self::DeviceTrees6_1 => "device-trees:6.1",
            Self::KvmHost6_1 => "kvm-host:6.1",
            Self::KvmHostAmd6_1 => "kvm-host-amd:6.1",
        }
    }

    /// The release that it is of.
    pub fn suite(self) -> &'static str {
        match self {
            Self::NewestKernel | Self::NewestDrivers => "trixie-backports",
            Self::Kernel6_12 | Self::Drivers6_12 | Self::General6_12 | Self::GeneralDrivers6_12 => "trixie",
            Self::Installer | Self::Busybox | Self::Xen | Self::Edk2 => "trixie",
            Self::Kernel6_1 | Self::Drivers6_1 | Self::DeviceTrees6_1 | Self::KvmHost6_1 | Self::KvmHostAmd6_1 => "bookworm",
        }
    }

    /// Its package, of those that the mirror has.
    pub(super) fn choose(self, arch: Arch, packages: &[Package]) -> Option<Package> {
        // The emulated PC is slow: it uses kernels for virtual machines.
        let series = |series| match arch {
            Arch::Aarch64 => Choice::General(series),
            Arch::X86_64 => Choice::Cloud(series),
        };
        let kernel = |choice| index::newest_kernel(packages, choice, debian_name(arch));
        match self {
            Self::NewestKernel => kernel(Choice::NewestCloud),
            Self::NewestDrivers => index::newest_named(packages, &modules::package_of(&kernel(Choice::NewestCloud)?.name)),
            Self::Drivers6_12 => kernel(series("6.12")),
            Self::Drivers6_1 | Self::DeviceTrees6_1 => kernel(series("6.1")),
            Self::Kernel6_12 => kernel(series("6.12")),
            Self::General6_12 | Self::GeneralDrivers6_12 => kernel(Choice::General("6.12")),
            Self::Kernel6_1 | Self::KvmHost6_1 | Self::KvmHostAmd6_1 => kernel(series("6.1")),
            Self::Installer => index::newest_named(packages, &format!("debian-installer-13-netboot-{}", debian_name(arch))),
            Self::Busybox => index::newest_named(packages, "busybox-static"),
            Self::Xen => index::newest_named(packages, &format!("xen-hypervisor-4.20-{}", debian_name(arch))),
            Self::Edk2 => index::newest_named(packages, "qemu-efi-aarch64"),
        }
    }

    /// The files that are taken out of its package.
    pub(super) fn wanted(self) -> &'static [Wanted] {
        match self {
            Self::NewestKernel | Self::Kernel6_12 | Self::Kernel6_1 | Self::General6_12 => {
                &[Wanted { is: is_kernel, name: "kernel", required: true }]
            }
            Self::NewestDrivers | Self::Drivers6_12 | Self::Drivers6_1 | Self::GeneralDrivers6_12 => modules::ALL,
            Self::Installer => &[
                Wanted { is: |path| is_installer(path, "linux"), name: "kernel", required: true },
                Wanted { is: |path| is_installer(path, "initrd.gz"), name: "initrd", required: true },
            ],
            Self::Busybox => &[Wanted { is: |path| matches!(path, "usr/bin/busybox" | "bin/busybox"), name: "busybox", required: true }],
            Self::KvmHost6_1 => &[
                Wanted { is: is_kernel, name: "kernel", required: true },
                Wanted { is: |path| path.ends_with("/kernel/virt/lib/irqbypass.ko"), name: "irqbypass.ko", required: true },
                Wanted { is: |path| path.ends_with("/kernel/arch/x86/kvm/kvm.ko"), name: "kvm.ko", required: true },
                Wanted { is: |path| path.ends_with("/kernel/arch/x86/kvm/kvm-intel.ko"), name: "kvm-intel.ko", required: true },
            ],
            Self::KvmHostAmd6_1 => KVM_HOST_OF_AMD,
            Self::Xen => {
                &[Wanted { is: |path| matches!(path, "boot/xen-4.20-arm64" | "boot/xen-4.20-amd64.gz"), name: "xen", required: true }]
            }
            Self::DeviceTrees6_1 => &[
                Wanted { is: |path| path.ends_with("/broadcom/bcm2711-rpi-4-b.dtb"), name: RASPBERRY_PI_4, required: true },
                Wanted { is: |path| path.ends_with("/xilinx/zynqmp-zcu102-rev1.0.dtb"), name: ZCU102, required: true },
            ],
            Self::Edk2 => &[Wanted { is: |path| path == "usr/share/qemu-efi-aarch64/QEMU_EFI.fd", name: "firmware", required: true }],
        }
    }
}

/// File of [`Item::DeviceTrees6_1`]: the Raspberry Pi 4's.
pub const RASPBERRY_PI_4: &str = "raspberry-pi-4";
/// File of [`Item::DeviceTrees6_1`]: the ZCU102's.
pub const ZCU102: &str = "zcu102";

/// Modules of KVM for AMD-V: `kvm-amd.ko` names the driver of AMD's secure processor, and that one the generator of random numbers.
const KVM_HOST_OF_AMD: &[Wanted] = &[
    Wanted { is: is_kernel, name: "kernel", required: true },
    Wanted { is: |path| path.ends_with("/kernel/virt/lib/irqbypass.ko"), name: "irqbypass.ko", required: true },
    Wanted { is: |path| path.ends_with("/kernel/arch/x86/kvm/kvm.ko"), name: "kvm.ko", required: true },
    Wanted { is: |path| path.ends_with("/kernel/drivers/char/hw_random/rng-core.ko"), name: "rng-core.ko", required: false },
    Wanted { is: |path| path.ends_with("/kernel/drivers/crypto/ccp/ccp.ko"), name: "ccp.ko", required: false },
    Wanted { is: |path| path.ends_with("/kernel/arch/x86/kvm/kvm-amd.ko"), name: "kvm-amd.ko", required: true },
];

/// Whether a path is that of a file of the text installer, for any architecture: a package has files of one only.
fn is_installer(path: &str, file: &str) -> bool {
    Arch::ALL.iter().any(|&arch| path.ends_with(&format!("/text/debian-installer/{}/{file}", debian_name(arch))))
}

fn is_kernel(path: &str) -> bool {
    path.starts_with("boot/vmlinuz-") || (path.starts_with("usr/lib/modules/") && path.ends_with("/vmlinuz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installer_is_that_of_the_architecture() {
        let names = Arch::ALL.map(|arch| format!("debian-installer-13-netboot-{}", debian_name(arch)));
        let list = names.each_ref().map(|name| format!("Package: {name}\nVersion: 1\n")).join("\n");
        let packages: Vec<_> = index::packages(&list).collect();
        for (arch, name) in Arch::ALL.into_iter().zip(&names) {
            assert!(Item::all(arch).contains(&Item::Installer));
            assert_eq!(&Item::Installer.choose(arch, &packages).unwrap().name, name);
            let folder = |kind: &str| format!("usr/lib/debian-installer/images/13/x/{kind}/debian-installer/{}", debian_name(arch));
            let is_kernel = Item::Installer.wanted()[0].is;
            assert!(is_kernel(&format!("{}/linux", folder("text"))) && !is_kernel(&format!("{}/linux", folder("gtk"))));
        }
    }
}
