//! A load under KVM: Debian's QEMU on Debian's kernel, on the same machine, with the guest's disk behind ioeventfd and a thread of its own.

use std::io::Write;

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use super::guest::drivers;
use super::run::{Job, Run, WAIT};
use super::{guest, native};
use crate::emulate;
use crate::full::{Counts, Work, ends_well, system};
use crate::platform::{self, Start};
use stile::config::Arch;
use stile::emulator::Machine;
use stile::initramfs::cpio::Archive;

/// The host's memory in bytes: its file system holds QEMU's libraries and the guest's files, which are in the guest's memory as well.
const MEMORY: u64 = system::MEMORY + (1536 << 20);

/// CPUs of the host, as many as with a service VM: the first is the vCPU's, and the other one that of QEMU's other threads.
const CPUS: u32 = 2;

/// The host's work: to run the guest, whose console is `/tmp/guest`.
///
/// QEMU passes the guest's requests on by Linux's asynchronous I/O, past the page cache.
const SCRIPT: &str = "
prepare() {
    for driver in /stile/drivers/*; do insmod $driver; done
    [ -c /dev/kvm ] && [ -b /dev/vda ]
}
run() {
    taskset 2 qemu-system-aarch64 -name guest,debug-threads=on -M virt,gic-version=3 -accel kvm -cpu host -m 512M -nodefaults -display none \\
        -serial stdio -object iothread,id=io -drive if=none,id=disk,format=raw,file=/dev/vda,cache=none,aio=native \\
        -device virtio-blk-pci,drive=disk,iothread=io,ioeventfd=on,disable-legacy=on,romfile= \\
        -kernel /guest/kernel -initrd /guest/initrd -append \"$(cat /guest/bootargs)\" >/tmp/guest &
    sleep 5
    for thread in /proc/$!/task/*; do
        case $(cat $thread/comm) in CPU*) taskset -p 1 ${thread##*/} ;; esac
    done
    wait $!
    cat /tmp/guest >/dev/console
    grep -q \"work: did $units of $work\" /tmp/guest
}
";

/// Runs a load under KVM.
pub fn run(job: &Job<'_>) -> Result<Run> {
    let name = job.load.work.name;
    let host = Work {
        name,
        unit: job.load.work.unit,
        vcpus: CPUS as u16,
        packages: &["qemu-system-arm"],
        programs: &["usr/bin/qemu-system-aarch64"],
        script: SCRIPT,
        units: job.load.work.units,
    };
    let mut host = system::build(Arch::Aarch64, guest::KERNEL, &host)?;
    host.initrd.extend(drivers()?);
    host.initrd.extend(guest_files(job));
    let mut initrd = NamedTempFile::new().context("making the host's file system")?;
    initrd.write_all(&host.initrd).context("writing the host's file system")?;
    let start = Start { cpu: job.cpu, cpus: CPUS, memory: MEMORY };
    let mut machine = platform::of(Arch::Aarch64).linux(&start, job.bootargs(), initrd.path());
    if let Machine::Arm(board) = &mut machine {
        board.extra.extend(WAIT.map(str::to_owned));
        board.extra.extend(native::disk(job));
    }
    let output = emulate::run(&machine, &host.kernel, Some(job.plugin))?;
    ends_well(&job.load.work, job.requests, &output.line)?;
    Ok(Run { counts: Counts::of(output.counts.as_ref())?, client: None })
}

/// An archive with the guest's files.
fn guest_files(job: &Job<'_>) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.directory("guest");
    archive.file("guest/kernel", 0o644, &job.guest.system.kernel);
    archive.file("guest/initrd", 0o644, &job.guest.system.initrd);
    archive.file("guest/bootargs", 0o644, job.bootargs().as_bytes());
    archive.finish()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_script_is_shell() {
        let shell = Command::new("sh").args(["-n", "-c", SCRIPT]).stdin(Stdio::null()).status().unwrap();
        assert!(shell.success());
    }
}
