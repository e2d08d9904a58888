//! A load under KVM: Debian's QEMU on Debian's kernel, on the same machine. A guest's disk has ioeventfd and an I/O thread; its network
//! card has vhost-net, on a bridge.

use std::io::Write;

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use super::guest::{drivers, with_modules};
use super::load::Destination;
use super::run::{Job, Run, WAIT};
use super::{guest, native};
use crate::emulate;
use crate::full::{Counts, Work, system, units_done};
use crate::platform::{self, Start};
use stile::config::Arch;
use stile::debian::{self, Freshness};
use stile::emulator::Machine;
use stile::initramfs::cpio::Archive;

/// Memory of the host itself in bytes: its file system holds QEMU's libraries and the guests' files, which the guests' memory holds, too.
const MEMORY: u64 = 1536 << 20;

/// The host's work: to run the guests by the variables of [`settings`]. Their consoles go to `/tmp/client` and `/tmp/server`.
///
/// Each vCPU has a CPU for itself. All other threads, QEMU's and vhost's in the kernel, share the last CPU.
const SCRIPT: &str = "
prepare() {
    for driver in /stile/drivers/*; do insmod $driver; done
    . /guest/settings
    [ $polling = true ] || echo 0 >/sys/module/kvm/parameters/halt_poll_ns
    others=$((1 << $(nproc) - 1))
    [ -z \"$server_arguments\" ] || { brctl addbr br0 && ip link set br0 up && [ -c /dev/vhost-net ]; } || return
    [ -c /dev/kvm ]
}
guest() {
    eval \"arguments=\\$$1_arguments devices=\\$$1_devices\"
    taskset $others qemu-system-aarch64 -name $1,debug-threads=on -M virt,gic-version=3 -accel kvm -cpu host -m 512M -nodefaults \\
        -display none -serial stdio $devices -kernel /guest/kernel -initrd /guest/initrd -append \"$arguments\" >/tmp/$1 &
    emulator=$!
    sleep 5
    for thread in /proc/$emulator/task/*; do
        case $(cat $thread/comm) in CPU*) taskset -p $2 ${thread##*/} ;; esac
    done
    for thread in $(pgrep vhost-$emulator); do taskset -p $others $thread; done
    wait $emulator
    cat /tmp/$1 >/dev/console
}
run() {
    [ -z \"$server_arguments\" ] || guest server 2 &
    guest client 1
    wait
    units=$(sed -n \"s/.*work: did \\([0-9]*\\) of $work.*/\\1/p\" /tmp/client)
    [ -n \"$units\" ]
}
";

/// The program that makes a guest's card a port of the bridge.
const PORT: &str = "#!/bin/sh
brctl addif br0 $1 && ip link set $1 up
";

/// Runs a load under KVM. `polling`: the host polls for events before it sleeps.
pub fn run(job: &Job<'_>, polling: bool) -> Result<Run> {
    let vms: u8 = match job.load.to {
        Destination::Disk => 1,
        Destination::Vm => 2,
    };
    let cpus = vms + 1;
    let host = Work {
        name: job.load.work.name,
        unit: job.load.work.unit,
        vcpus: cpus.into(),
        packages: &["qemu-system-arm"],
        programs: &["usr/bin/qemu-system-aarch64"],
        script: SCRIPT,
        units: job.load.work.units,
    };
    let mut host = system::build(Arch::Aarch64, guest::KERNEL, &host)?;
    let bridge = debian::bridge_modules(Arch::Aarch64, guest::KERNEL, Freshness::Weekly)?;
    let vhost = debian::vhost_modules(guest::KERNEL, Freshness::Weekly)?;
    host.initrd.extend(with_modules(&[drivers()?, bridge, vhost].concat()));
    host.initrd.extend(guest_files(job, polling));
    let mut initrd = NamedTempFile::new().context("making the host's file system")?;
    initrd.write_all(&host.initrd).context("writing the host's file system")?;
    let start = Start { cpu: job.cpu, cpus: cpus.into(), memory: MEMORY + u64::from(vms) * system::MEMORY };
    let mut machine = platform::of(Arch::Aarch64).linux(&start, job.bootargs(), initrd.path());
    if let Machine::Arm(board) = &mut machine {
        board.extra.extend(WAIT.map(str::to_owned));
        board.extra.extend(native::disk(job));
    }
    let output = emulate::run(&machine, &host.kernel, Some(job.plugin))?;
    let requests = units_done(&job.load.work, &output.line)?;
    Ok(Run { requests, counts: Counts::of(output.counts.as_ref())?, client: None })
}

/// An archive with the guests' files.
fn guest_files(job: &Job<'_>, polling: bool) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.directory("guest");
    archive.file("guest/kernel", 0o644, &job.guest.system.kernel);
    archive.file("guest/initrd", 0o644, &job.guest.system.initrd);
    archive.file("guest/port", 0o755, PORT.as_bytes());
    archive.file("guest/settings", 0o644, settings(job, polling).as_bytes());
    archive.finish()
}

/// Variables of the host's script: the guests' kernel arguments, and QEMU's arguments for their devices.
///
/// QEMU passes requests to the disk on by Linux's asynchronous I/O, past the page cache.
fn settings(job: &Job<'_>, polling: bool) -> String {
    let client = format!("polling={polling}\nclient_arguments='{}'\n", job.bootargs());
    match job.load.to {
        Destination::Disk => {
            let thread = if polling { "" } else { ",poll-max-ns=0" };
            format!(
                "{client}client_devices='-object iothread,id=io{thread} \
                 -drive if=none,id=disk,format=raw,file=/dev/vda,cache=none,aio=native \
                 -device virtio-blk-pci,drive=disk,iothread=io,ioeventfd=on,disable-legacy=on,romfile='\n"
            )
        }
        Destination::Vm => {
            let card = |name: &str, address: u8| {
                format!(
                    "{name}_devices='-netdev tap,id=net,vhost=on,script=/guest/port,downscript=no \
                     -device virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{address},disable-legacy=on,romfile='\n"
                )
            };
            let server = job.server_bootargs();
            format!("{client}{}server_arguments='{server}'\n{}", card("client", 1), card("server", 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn scripts_are_shell() {
        for script in [SCRIPT, PORT] {
            let shell = Command::new("sh").args(["-n", "-c", script]).stdin(Stdio::null()).status().unwrap();
            assert!(shell.success(), "{script}");
        }
    }
}
