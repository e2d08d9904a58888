//! The scenarios with PCI functions that are assigned to VMs.

use std::ops::RangeInclusive;

use anyhow::Result;

use super::disk::{Contents, Disk};
use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use stile::config::Arch;
use stile::exit;
use stile::programs::Programs;
use stile::session::SAME_MEMORY;

/// Gets an address by DHCP, with the script of the busybox system. An attempt ends after 9 s, in which a stalled emulator has no answer.
pub const DHCP: &str = "until udhcpc -i eth0 -f -n -q; do true; done";
/// Waits until the emulator's network answers: the kernel drops packets for which ARP takes over 3 s.
pub const REACHED: &str = "until ping -c 1 10.0.2.2 > /dev/null; do true; done";
/// Sends a packet to the emulator's network. Of several, busybox's ping waits one second only for the last reply.
pub const PING: &str = "ping -c 1 -W 99 10.0.2.2";

/// QEMU's options for a virtio function behind the SMMU.
pub(super) const VIRTIO: &str = "addr=2,iommu_platform=on,disable-legacy=on,romfile=";

/// All of them.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    Ok(vec![
        assigned_disk(programs)?,
        reset_in_flight(),
        blocked_dma(programs)?,
        request_budget(),
        other_cpu(),
        network(),
        bridge(),
        nvme(),
        pending_bits(),
        full_host(),
        absent(),
        without_smmu(),
        bypassing(),
        bounded_exits(programs)?,
        injected(request_budget(), "budgets/injected-disk", vec![("device", 0..=20, 1000.0)]),
        injected(blocked_dma(programs)?, "devices/injected-blocked-dma", vec![]),
        injected(bounded_exits(programs)?, "devices/injected-bounded-exits", vec![]),
        bounded_translations(programs)?,
        injected(bounded_translations(programs)?, "devices/injected-bounded-translations", vec![]),
        injected(network(), "devices/injected-network", vec![]),
        injected(reset_in_flight(), "devices/injected-reset", vec![]),
        injected(nvme(), "devices/injected-nvme", vec![]),
        doorbells(programs)?,
        by_acpi(nvme(), "devices/nvme-by-acpi"),
        by_acpi(network(), "devices/network-by-acpi"),
        by_acpi(blocked_dma(programs)?, "devices/blocked-dma-by-acpi"),
        by_acpi(without_smmu(), "devices/without-smmu-by-acpi"),
    ])
}

/// A scenario on a machine with GICv4, which injects messages without exits, with limits on rows of the account.
fn injected(scenario: Scenario, name: &str, rows: Vec<(&'static str, RangeInclusive<u64>, f64)>) -> Scenario {
    let notes = ["the GIC injects messages of its PCI functions".into()].into_iter().chain(scenario.expect.notes).collect();
    let expect = Expect { rows, notes, ..scenario.expect };
    Scenario { name: name.into(), expect, ..scenario }.with("--machine-option", "gic-version=4")
}

/// A scenario on a machine that firmware starts, and describes by ACPI tables: BARs stay where firmware put them.
fn by_acpi(scenario: Scenario, name: &str) -> Scenario {
    Scenario { name: name.into(), ..scenario }.flag("--uefi").with("--machine-option", "acpi=on")
}

/// With GICv4, a VM shares its CPU with one that computes: while it waits for its disk, or for the CPU, messages ring its doorbell. Its
/// vCPUs take their vPEs from CPU to CPU.
fn doorbells(programs: &Programs) -> Result<Scenario> {
    Ok(injected(assigned_disk(programs)?, "devices/doorbells", vec![]))
}

/// The arguments that add a device to the machine.
pub(super) fn device(scenario: Scenario, words: &[&str]) -> Scenario {
    words.iter().fold(scenario, |scenario, word| scenario.with("--qemu-arg", *word))
}

/// The file system with a disk's file is full: the guest gets an I/O error, the user a message with the file, the reason and the remedy.
fn full_host() -> Scenario {
    let full = r#"drive.disk0.file=json:{"file":{"driver":"blkdebug","inject-error":[{"event":"write_aio","errno":28}],"image":{"driver":"file","filename":"{disk}"}}}"#;
    let scenario = Scenario::new("devices/full-host", "--kernel debian --memory 256M --disk {disk},format=raw")
        .with("--exec", "dd if=/dev/zero of=/dev/vda bs=4096 count=1 oflag=direct 2>&1 || echo status $?");
    let notes = vec!["a write failed (No space left on device), and the guest got an I/O error: make room in its file system (df /".into()];
    let expect = Expect { output: vec!["status 1".into()], notes, ..Expect::default() };
    Scenario { disk: Some(Contents::Script("")), expect, ..device(scenario, &["-set", full]) }
}

/// A machine with a virtio disk as function 0000:00:02.0.
pub(super) fn with_disk(scenario: Scenario, disk: Disk) -> Scenario {
    let virtio = format!("virtio-blk-pci,drive=disk,{VIRTIO}");
    let scenario = device(scenario, &["-drive", "if=none,id=disk,format=raw,file={disk}", "-device", &virtio]);
    Scenario { disk: Some(Contents::Halves(disk)), ..scenario }
}

/// Debian copies data on its assigned disk and reads the copy, beside a VM that computes.
fn assigned_disk(programs: &Programs) -> Result<Scenario> {
    let disk = Disk { half: 16 << 20 };
    let read = |skip| format!("dd if=/dev/vda bs=1M count=16 skip={skip} iflag=direct | sha256sum");
    let copy = "dd if=/dev/vda of=/dev/vda bs=64k count=256 seek=256 iflag=direct oflag=direct";
    let exec = format!("{}; {copy}; sync; {}", read(0), read(16));
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"disk\"\nkernel = \"debian\"\nvcpus = 2\nmemory = \"256M\"\nexec = \"{exec}\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nmemory = \"64M\"\n",
        programs.path("checksum")?
    );
    // The neighbour may end before or after: it must not fail.
    let sum = format!("disk      | {}", disk.sum());
    let expect =
        Expect { output: vec![sum.clone(), sum], notes: vec![NO_DIFFERENCE.into(); 2], absent: vec!["FAIL "], ..Expect::default() };
    let scenario = with_disk(Scenario { config: Some(config), ..Scenario::new("devices/assigned-disk", "--exits") }, disk);
    Ok(Scenario { expect, ..scenario })
}

/// Disk of [`reset_under_load`].
pub(super) const RESET_DISK: Disk = Disk { half: 16 << 20 };

/// A command with which Debian resets itself while it reads and writes its disk as fast as it can. After that it prints "second" and the
/// disk's sum.
pub(super) fn reset_under_load() -> String {
    let mark = "echo second > /tmp/mark; dd if=/tmp/mark of=/dev/vda bs=512 seek=65535 conv=sync oflag=direct";
    let load = "for n in 1 2 3 4; do dd if=/dev/vda of=/dev/null bs=1M count=16 iflag=direct & done; \
                dd if=/dev/vda of=/dev/vda bs=64k count=256 seek=256 iflag=direct oflag=direct & reboot -f";
    let check = "dd if=/dev/vda bs=1M count=16 iflag=direct | sha256sum; \
                 dd if=/dev/vda of=/dev/vda bs=64k count=256 seek=256 iflag=direct oflag=direct; sync";
    format!("if dd if=/dev/vda bs=512 skip=65535 iflag=direct | grep second; then {check}; else {mark}; {load}; fi")
}

/// Debian resets itself with requests under way. After that the disk works, and nothing that was under way has reached memory: kernel and
/// programs are as they were loaded.
fn reset_in_flight() -> Scenario {
    let (disk, exec) = (RESET_DISK, reset_under_load());
    let config = format!(
        "[[vm]]\nname = \"disk\"\nkernel = \"debian\"\nvcpus = 2\nmemory = \"256M\"\nexec = \"{exec}\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n"
    );
    let expect = Expect { output: vec!["second".into(), disk.sum()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    let scenario = Scenario { config: Some(config), ..Scenario::new("devices/reset-in-flight", "--exits") };
    Scenario { expect, ..with_disk(scenario, disk) }
}

/// A guest makes a function access foreign memory, and resets during an access. That is blocked, reported, and does
/// nothing to its neighbour.
fn blocked_dma(programs: &Programs) -> Result<Scenario> {
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"dma\"\nkernel = \"{}\"\nappend = \"stile\"\nmemory = \"64M\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nmemory = \"64M\"\n",
        programs.path("pci")?,
        programs.path("checksum")?
    );
    let blocked = |what: &str| format!("dma: PCI function 0000:00:02.0 {what}, outside of the VM's memory: blocked");
    let notes = [blocked("read 0x44000000"), blocked("wrote to 0x44000000"), blocked("wrote to 0x8000000")];
    let silent = "dma: function 0000:00:02.0 has no MSI-X: its interrupts do not reach the VM";
    let notes =
        notes.into_iter().chain([silent, "is cut off from memory", NO_DIFFERENCE, NO_DIFFERENCE, SAME_MEMORY].map(Into::into)).collect();
    let expect = Expect {
        output: vec![
            "boot 1".into(),
            "PASS many_faults_cut_it_off".into(),
            "PASS a_queue_outside_of_memory_stalls".into(),
            "boot 2".into(),
            "PASS nothing_was_under_way".into(),
        ],
        notes,
        absent: vec!["FAIL "],
        ..Expect::default()
    };
    let scenario = Scenario { config: Some(config), ..Scenario::new("devices/blocked-dma", "--exits") };
    Ok(Scenario { expect, ..device(scenario, &["-device", "edu,addr=2,dma_mask=0xffffffffffff"]) })
}

/// No exit of a VM that writes full command queues to its ITS, and enables all LPIs at once, is longer than an exit may be. Virtual time
/// counts instructions.
fn bounded_exits(programs: &Programs) -> Result<Scenario> {
    let config = format!(
        "[[vm]]\nname = \"dma\"\nkernel = \"{}\"\nappend = \"stile only=queue\"\nmemory = \"64M\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n",
        programs.path("pci")?
    );
    let expect = Expect { bounded_exits: Some(Arch::Aarch64), ..passed() };
    let scenario = Scenario { config: Some(config), expect, ..Scenario::new("devices/bounded-exits", "--icount --exits") };
    Ok(device(scenario, &["-device", "edu,addr=2,dma_mask=0xffffffffffff"]))
}

/// A VM with eight functions, all of whose vectors are translated, or all by one event: its exits are bounded.
fn bounded_translations(programs: &Programs) -> Result<Scenario> {
    let functions: String = (2..10).map(|device| format!("[[vm.pci]]\nfunction = \"0000:00:{device:02x}.0\"\n")).collect();
    let config = format!(
        "[[vm]]\nname = \"vectors\"\nkernel = \"{}\"\nappend = \"stile only=vectors\"\nmemory = \"64M\"\n{functions}",
        programs.path("pci")?
    );
    let expect = Expect { bounded_exits: Some(Arch::Aarch64), ..passed() };
    let scenario = Scenario { config: Some(config), expect, ..Scenario::new("devices/bounded-translations", "--icount --exits") };
    let devices: Vec<String> = (2..10).map(|device| format!("nvme,serial=stile{device},addr={device}")).collect();
    let words: Vec<&str> = devices.iter().flat_map(|device| ["-device", device]).collect();
    Ok(self::device(scenario, &words))
}

/// Number of requests of 4 KiB, read or written one after the other.
const REQUESTS: u64 = 4000;

/// A VM that makes [`REQUESTS`], and few others.
fn with_requests(name: &str, cpus: u32, vm: &str) -> Scenario {
    let half = REQUESTS / 2;
    let exec = format!(
        "dd if=/dev/vda of=/dev/null bs=4k count={half} iflag=direct; dd if=/dev/zero of=/dev/vda bs=4k seek=4096 count={half} oflag=direct"
    );
    let config = format!(
        "[machine]\ncpus = {cpus}\n\n\
         [[vm]]\nname = \"disk\"\nkernel = \"debian\"\nmemory = \"256M\"\n{vm}exec = \"{exec}; {}\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n",
        "dd if=/dev/vda of=/dev/vda bs=1M count=16 seek=16 iflag=direct oflag=direct"
    );
    with_disk(Scenario { config: Some(config), ..Scenario::new(name, "--exits") }, Disk { half: 16 << 20 })
}

/// Cost of a request: one exit, for its interrupt, and at most this many instructions in Stile. Virtual time counts them.
fn request_budget() -> Scenario {
    const INSTRUCTIONS: f64 = 170.0;
    let scenario = with_requests("budgets/assigned-disk", 1, "");
    // The copy at the end, and the kernel's reads when it probes the disk, are a few more requests.
    let rows = vec![("device", REQUESTS..=REQUESTS + 100, INSTRUCTIONS / 1000.0)];
    Scenario { expect: Expect { notes: vec![NO_DIFFERENCE.into()], rows, ..Expect::default() }, ..scenario }.flag("--icount")
}

/// Interrupts follow their VM to the CPU that it runs on, so that they need no second exit.
fn other_cpu() -> Scenario {
    let scenario = with_requests("devices/other-cpu", 2, "cpus = [1]\n");
    let rows = vec![("device", REQUESTS - 100..=REQUESTS + 100, 1000.0)];
    Scenario { expect: Expect { notes: vec![NO_DIFFERENCE.into()], rows, ..Expect::default() }, ..scenario }
}

/// Debian reaches the emulator's network through a card that is assigned to it, whose interrupts the ITS takes from vCPU to vCPU, and
/// away from one that is turned off.
fn network() -> Scenario {
    let up = "ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0";
    let irqs = "grep ITS /proc/interrupts";
    let moved = format!("for i in $({irqs} | cut -d: -f1); do echo $cpu > /proc/irq/$i/smp_affinity_list; done");
    let everywhere =
        format!("{irqs} | while read irq a b c rest; do [ $a -gt 0 ] && [ $b -gt 0 ] && [ $c -gt 0 ] && echo on all CPUs; done");
    let ping = format!("{PING} | grep received");
    let exec = format!(
        "{up}; {REACHED}; for cpu in 0 1 2 1; do {moved}; {ping}; {ping}; done; {everywhere}; \
         echo 0 > /sys/devices/system/cpu/cpu1/online; {ping}; {ping}; {ping}"
    );
    let config = format!(
        "[[vm]]\nname = \"net\"\nkernel = \"debian\"\nmemory = \"256M\"\nvcpus = 3\nexec = \"{exec}\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n"
    );
    let scenario = Scenario { config: Some(config), ..Scenario::new("devices/network", "--exits") };
    let card = format!("virtio-net-pci,netdev=net,{VIRTIO}");
    let received = |count| vec!["1 packets received".to_owned(); count];
    let output = [received(8), vec!["on all CPUs".into()], received(3)].concat();
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..device(scenario, &["-netdev", "user,id=net", "-device", &card]) }
}

/// Two VMs of a configuration file get addresses on a bridge, and one connects to the other. One of them also has a disk.
fn bridge() -> Scenario {
    let disk = Disk { half: 1 << 20 };
    let copy = "dd if=/dev/vda of=/dev/vda bs=64k count=16 seek=16 iflag=direct oflag=direct; sync";
    // Beside the address that it gets, which depends on who asks first.
    let one = format!("{copy}; {DHCP}; ip addr add 10.0.3.3/24 dev eth0; echo served $((6 * 7)) | nc -l -p 7");
    let other = format!("{DHCP}; until nc -w 600 10.0.3.3 7 | grep served; do sleep 1; done; ip -4 addr show eth0");
    let vm = |name: &str, exec: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\nmemory = \"256M\"\nexec = \"{exec}\"\n\
             [[vm.net]]\nbridge = \"lan0\"\n"
        )
    };
    let config = format!("{}[[vm.disk]]\nfile = \"disk.img\"\nformat = \"raw\"\n{}", vm("a", &one), vm("b", &other));
    let expect =
        Expect { output: vec!["served 42".into(), "inet 10.0.3.1".into()], notes: vec![NO_DIFFERENCE.into(); 2], ..Expect::default() };
    Scenario { config: Some(config), disk: Some(Contents::Halves(disk)), expect, ..Scenario::new("devices/bridge", "--exits") }
}

/// An NVMe disk, which has function-level reset and more vectors than a guest sees: Debian resets, and uses it again.
fn nvme() -> Scenario {
    let disk = Disk { half: 16 << 20 };
    let device_file = "/dev/nvme0n1";
    let wait = format!("while [ ! -e {device_file} ]; do sleep 1; done");
    let copy = format!("dd if={device_file} of={device_file} bs=64k count=256 seek=256 iflag=direct oflag=direct; sync");
    let is_second = format!("dd if={device_file} bs=512 skip=65535 iflag=direct | grep second");
    let mark = format!("echo second > /tmp/mark; dd if=/tmp/mark of={device_file} bs=512 seek=65535 conv=sync oflag=direct");
    let exec = format!("{wait}; if {is_second}; then {copy}; else {mark}; reboot -f; fi");
    let config = format!(
        "[[vm]]\nname = \"nvme\"\nkernel = \"debian\"\nmemory = \"256M\"\nvcpus = 2\nexec = \"{exec}\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n"
    );
    let scenario =
        Scenario { config: Some(config), disk: Some(Contents::Halves(disk)), ..Scenario::new("devices/nvme-after-reset", "--exits") };
    let drive = ["-drive", "if=none,id=disk,format=raw,file={disk}", "-device", "nvme,drive=disk,serial=stile,addr=2,romfile="];
    let expect = Expect { output: vec!["second".into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..device(scenario, &drive) }
}

/// A VM with an unavailable function: nothing starts, and the reason is reported.
fn refused(name: &str, why: &str) -> Scenario {
    let config = "[[vm]]\nname = \"web\"\nkernel = \"debian\"\nmemory = \"256M\"\n[[vm.pci]]\nfunction = \"0000:00:02.0\"\n".to_owned();
    let expect = Expect { status: exit::LACKING, notes: vec![why.into(), "can't run here".into()], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new(name, "") }
}

/// A guest accesses the pending bits of MSI-X in widths that QEMU's functions fault at, through the page that Stile emulates.
fn pending_bits() -> Scenario {
    let bar = "$(sed -n 2p /sys/bus/pci/devices/0000:00:01.0/resource | cut -c1-18)";
    let accesses = ["2048)) 8", "2049)) 8", "2050)) 16", "2052)) 32", "2048)) 8 1", "2048)) 16 1", "2048)) 32 1"];
    let accesses = accesses.map(|access| format!("devmem $((A+{access}; ")).concat();
    let config = format!(
        "[[vm]]\nname = \"web\"\nkernel = \"debian\"\nmemory = \"256M\"\nexec = \"A={bar}; {accesses}echo alive $?\"\n\
         [[vm.pci]]\nfunction = \"0000:00:02.0\"\n"
    );
    let expect = Expect { output: vec!["alive 0".into()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    let scenario = Scenario { config: Some(config), expect, ..Scenario::new("devices/pending-bits", "--exits") };
    device(scenario, &["-device", &format!("virtio-rng-pci,{VIRTIO}")])
}

/// QEMU's virtio functions bypass the SMMU unless this property is set.
fn bypassing() -> Scenario {
    let disk = "virtio-rng-pci,addr=2,disable-legacy=on";
    device(refused("devices/bypasses-smmu", "its requests bypass the IOMMU (QEMU: iommu_platform=on)"), &["-device", disk])
}

fn absent() -> Scenario {
    refused("devices/absent", "web: function 0000:00:02.0 can't be assigned: there is no such function on this machine")
}

fn without_smmu() -> Scenario {
    refused("devices/without-smmu", "web: PCI functions can't be assigned: the device tree (or the ACPI table IORT) has no SMMUv3")
        .with("--machine-option", "iommu=none")
}
