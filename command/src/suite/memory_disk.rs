//! Disks in memory: Debian mounts one, writes it, and finds the image again after a reset. Behind it is no memory.

use super::disk::Contents;
use super::ext4::SIZE;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario};
use stile::config::Arch;
use stile::exit;

/// RAM of the VM in MiB.
const RAM: u64 = 256;

/// A VM with Debian has two such disks. After a write it resets itself once; the second reset ends it.
pub(super) fn in_memory(arch: Arch) -> Scenario {
    let (name, base, cpu) = match arch {
        Arch::Aarch64 => ("disk/in-memory", 1 << 30, ""),
        Arch::X86_64 => ("pc/disk/in-memory", 0, "cpu = \"max\"\n"),
    };
    // Behind the second disk.
    let end = base + (RAM << 20) + 2 * SIZE + (2 << 20);
    // Arm aborts the access; a PC reads ones.
    let beyond = format!("devmem {end:#x} 32 || echo aborted");
    let exec = format!(
        "mount /dev/pmem0 /mnt && cat /mnt/hello && echo changed > /mnt/hello && umount /mnt && \
         mount -o ro /dev/pmem0 /mnt && cat /mnt/hello; \
         mount -o ro /dev/pmem1 /tmp && sed s/hello/second/ /tmp/hello; {beyond}; reboot -f"
    );
    let disk = "[[vm.disk]]\nfile = \"{disk}\"\nin_memory = true\n";
    let config = format!(
        "[machine]\narch = \"{arch}\"\n{cpu}\n[[vm]]\nname = \"disk\"\nkernel = \"debian\"\nmemory = \"{RAM}M\"\non_reset = \"restart:1\"\n\
         exec = \"\"\"{exec}\"\"\"\n{disk}{disk}"
    );
    let outside = if arch == Arch::Aarch64 { "aborted" } else { "0xFFFFFFFF" };
    let life = ["hello from a disk", "changed", "second from a disk", outside];
    let output = [life, life].concat().into_iter().map(str::to_owned).collect();
    let expect = Expect { status: exit::GUEST, output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { config: Some(config), disk: Some(Contents::Ext4), expect, ..Scenario::new(name, "--exits") }
}
