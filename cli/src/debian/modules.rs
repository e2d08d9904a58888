//! Modules of Debian's kernels that are drivers of PCI functions and virtio devices, and their dependencies.

use super::deb::Wanted;

macro_rules! modules {
    ($($name:literal,)+) => {
        &[$(Wanted { is: |path| is_module(path, $name), name: concat!($name, ".ko"), required: false }),+]
    };
}

/// The modules of all the lists below; each name is in one of them.
macro_rules! lists {
    ($($(#[$about:meta])* $list:ident = [$($name:literal,)+];)+) => {
        $($(#[$about])* pub(super) const $list: &[Wanted] = modules![$($name,)+];)+
        /// All of them.
        pub(super) const ALL: &[Wanted] = modules![$($($name,)+)+];
    };
}

lists! {
    /// The drivers, each behind those that it needs.
    DRIVERS = [
        "virtio",
        "virtio_ring",
        "virtio_pci_legacy_dev",
        "virtio_pci_modern_dev",
        "virtio_pci",
        "virtio_mmio",
        "virtio_blk",
        "failover",
        "net_failover",
        "virtio_net",
        "rng-core",
        "virtio-rng",
        "virtio_balloon",
        "t10-pi",
        "crc64-rocksoft",
        "nvme-common",
        "nvme-keyring",
        "nvme-auth",
        "nvme-core",
        "nvme",
        "ptp",
        "e1000e",
        "usb-common",
        "usbcore",
        "xhci-hcd",
        "xhci-pci",
    ];
    /// KVM of x86-64.
    KVM = ["irqbypass", "kvm", "kvm-intel",];
    /// Bridges, and TUN/TAP, with which a process is a bridge's port.
    BRIDGE = ["llc", "stp", "bridge", "tun",];
    /// vhost-net, which serves the network cards of KVM's guests in the kernel; loaded after the modules for bridges.
    VHOST = ["tap", "vhost_iotlb", "vhost", "vhost_net",];
    /// Consoles over virtio.
    CONSOLE = ["virtio_console",];
    /// Sockets between VMs (vsock).
    SOCKETS = ["vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport",];
    /// The file systems 9P over virtio, and virtiofs.
    FOLDERS = ["netfs", "fscache", "9pnet", "9pnet_virtio", "9p", "fuse", "virtiofs",];
    /// Disks in memory: persistent memory that a device tree or a PC's memory map describes; and the file system ext4 on them.
    MEMORY_DISKS = [
        "dax",
        "libnvdimm",
        "nd_btt",
        "nd_pmem",
        "of_pmem",
        "nd_e820",
        "crc32c_generic",
        "crc16",
        "mbcache",
        "jbd2",
        "ext4",
    ];
}

/// Whether a path in a package is the module of this name, compressed or not.
fn is_module(path: &str, name: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    path.contains("/kernel/") && matches!(file.strip_prefix(name), Some(".ko" | ".ko.xz"))
}

/// The name of the package with the modules of the kernel in another package.
pub(super) fn package_of(kernel: &str) -> String {
    kernel.replace("linux-binary-", "linux-modules-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_recognised_by_their_names() {
        let path = |file: &str| format!("usr/lib/modules/7.3.4/kernel/drivers/virtio/{file}");
        assert!(is_module(&path("virtio.ko.xz"), "virtio"));
        assert!(is_module(&path("virtio.ko"), "virtio"));
        assert!(!is_module(&path("virtio_ring.ko"), "virtio"));
        assert!(!is_module(&path("virtio.ko.sig"), "virtio"));
        assert!(!is_module("usr/share/doc/virtio.ko", "virtio"));
        assert_eq!(package_of("linux-binary-7.3.4+deb13-cloud-arm64"), "linux-modules-7.3.4+deb13-cloud-arm64");
        assert_eq!(package_of("linux-image-6.1.0-50-arm64-unsigned"), "linux-image-6.1.0-50-arm64-unsigned");
    }
}
