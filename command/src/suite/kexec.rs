//! The system of scenarios in which Linux starts another kernel by kexec, with the module for direct IPIs loaded.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use stile::config::{Arch, DebianKernel};
use stile::debian::{self, Freshness};
use stile::initramfs::cpio::Archive;
use stile::l2::linux;

/// Initial program of both kernels. The second one's file system is a copy of the first one's, without the kernel.
const INIT: &str = "#!/busybox sh
/busybox mkdir -p /bin /proc /tmp
/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
insmod /stile_ipi.ko && echo \"the module is loaded on $(nproc) CPUs\"
work() { for i in $(seq $1); do ls /bin | sort | md5sum; done; }
if grep -q second /proc/cmdline; then
    work 10 >/tmp/a & work 10 >/tmp/b & wait
    echo \"second kernel: $(sort -u /tmp/a /tmp/b | wc -l)\"
    poweroff -f
fi
(ls -d /dev /dev/console /init /busybox /stile_ipi.ko | cpio -o -H newc) >/initrd
work 1000 >/dev/null &
";

/// The initial RAM file system of the first kernel.
#[derive(Debug, Clone, Copy)]
pub struct Kexec {
    /// Starts the second kernel, with the command line that follows.
    pub command: &'static str,
    /// The second kernel's CPUs.
    pub cpus: u32,
}

impl Kexec {
    /// Writes the file system.
    ///
    /// # Errors
    /// Debian's packages can't be had, the program or the module can't be built, or the file can't be written.
    pub fn write(self, path: &Path) -> Result<()> {
        let Kexec { command, cpus } = self;
        let second = format!("{command} \"console=ttyS0 quiet second nr_cpus={cpus}\" || poweroff -f\n");
        let read = |path: &Path| fs::read(path).with_context(|| format!("reading {}", path.display()));
        let mut archive = Archive::default();
        archive.directory("dev");
        archive.character_device("dev/console", 0o600, 5, 1);
        archive.file("init", 0o755, [INIT, &second].concat().as_bytes());
        archive.file("busybox", 0o755, &read(&debian::busybox_for(Arch::X86_64, Freshness::Weekly)?)?);
        archive.file("kexec", 0o755, &linux::build_for(Arch::X86_64, "kexec")?);
        archive.modules(debian::ipi_module(DebianKernel::V6_1, Freshness::Weekly)?.as_slice());
        archive.file("kernel", 0o644, &read(&debian::kernel_for(Arch::X86_64, DebianKernel::V6_1, Freshness::Weekly)?.kernel)?);
        fs::write(path, archive.finish()).with_context(|| format!("writing {}", path.display()))
    }
}
