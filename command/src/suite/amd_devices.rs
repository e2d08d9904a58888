//! The scenarios of a PC with AMD-V whose VMs own PCI functions, behind AMD's IOMMU.

use anyhow::Result;
use rustix::process::Signal;

use super::devices::{RESET_DISK, VIRTIO, device, reset_under_load, with_disk};
use super::disk::Disk;
use super::disturbed::Disturbed;
use super::operator::Step;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario};
use stile::exit;
use stile::programs::{PASSED, Programs};
use stile::session::SAME_MEMORY;

/// All of them.
///
/// # Errors
/// A guest is missing.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let mut scenarios = vec![assigned_disk(), reset_in_flight(), blocked_dma(), hostile(programs)?];
    for attack in ["messages", "wakes", "entries", "masks", "bars", "faults", "resets"] {
        scenarios.push(storm(attack, programs)?);
    }
    Ok(scenarios)
}

/// A machine with two CPUs and a VM with Debian that has a function and executes a command.
fn config(exec: &str, function: &str) -> Option<String> {
    Some(format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 2\n\n\
         [[vm]]\nname = \"debian\"\nkernel = \"debian\"\nvcpus = 2\nmemory = \"256M\"\nexec = \"\"\"{exec}\"\"\"\n\
         [[vm.pci]]\nfunction = \"{function}\"\n"
    ))
}

/// Debian copies data on its assigned disk and reads the copy.
fn assigned_disk() -> Scenario {
    let disk = Disk { half: 16 << 20 };
    let read = |skip| format!("dd if=/dev/vda bs=1M count=16 skip={skip} iflag=direct | sha256sum");
    let copy = "dd if=/dev/vda of=/dev/vda bs=64k count=256 seek=256 iflag=direct oflag=direct";
    let exec = format!("{}; {copy}; sync; {}", read(0), read(16));
    let scenario = Scenario { config: config(&exec, "0000:00:02.0"), ..Scenario::new("pc/amd/devices/assigned-disk", "--exits") };
    let expect = Expect { output: vec![disk.sum(); 2], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..with_disk(scenario, disk) }
}

/// Debian resets itself with requests under way, which reach no memory afterwards.
fn reset_in_flight() -> Scenario {
    let (disk, exec) = (RESET_DISK, reset_under_load());
    let scenario = Scenario { config: config(&exec, "0000:00:02.0"), ..Scenario::new("pc/amd/devices/reset-in-flight", "--exits") };
    let expect = Expect { output: vec!["second".into(), disk.sum()], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { expect, ..with_disk(scenario, disk) }
}

/// Debian makes a function copy a word of its memory, at addresses that are others' on the machine, and access addresses beyond its memory.
fn blocked_dma() -> Scenario {
    let registers = "D=/sys/bus/pci/devices/0000:00:01.0; B=$(sed -n 1p $D/resource | cut -c1-18); echo 1 > $D/enable; \
                     printf '\\\\006' | dd of=$D/config bs=1 seek=4 conv=notrunc";
    // Source, destination, and direction: 1 is from memory, 3 is to memory. The function's own memory is at 40000h.
    let dma = "dma() { devmem $((B+0x80)) 32 $1; devmem $((B+0x88)) 32 $2; devmem $((B+0x90)) 32 16; devmem $((B+0x98)) 32 $3; \
               while [ $(($(devmem $((B+0x98)) 32) & 1)) = 1 ]; do :; done; }";
    let copy = "devmem 0x2000 32 0x12345678; dma 0x2000 0x40000 1; dma 0x40000 0x3000 3; echo copied $(devmem 0x3000 32)";
    let beyond = "dma 0x40000 0x10000000 3; dma 0x40000 0x20000000 3; echo blocked";
    let exec = format!("{registers}; {dma}; {copy}; {beyond}");
    let scenario = Scenario { config: config(&exec, "0000:00:05.0"), ..Scenario::new("pc/amd/devices/blocked-dma", "--exits") };
    // QEMU (10.0) does not log the requests.
    let silent = "debian: function 0000:00:05.0 has no MSI-X: its interrupts do not reach the VM".into();
    let notes = vec![silent, "the IOMMU has blocked requests of PCI functions".into(), NO_DIFFERENCE.into()];
    let expect = Expect { output: vec!["copied 0x12345678".into(), "blocked".into()], notes, ..Expect::default() };
    Scenario { expect, ..device(scenario, &["-device", "edu,addr=5,dma_mask=0xffffffffffff"]) }
}

/// Returns the configuration of a VM with three functions, those of [`three_devices`], beside a VM that verifies checksums.
fn beside_checksums(machine: &str, attacker: &str, neighbour: &str, programs: &Programs) -> Result<String> {
    let functions = [3, 4, 5].map(|device| format!("[[vm.pci]]\nfunction = \"0000:00:{device:02x}.0\"\n")).concat();
    Ok(format!(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = 2\n{machine}\n\
         [[vm]]\nname = \"attacker\"\nkernel = \"{}\"\nmemory = \"64M\"\n{attacker}{functions}\n\
         [[vm]]\nname = \"neighbour\"\nkernel = \"{}\"\nmemory = \"64M\"\n{neighbour}",
        programs.path("functions")?,
        programs.path("checksum")?
    ))
}

/// Adds the devices of [`beside_checksums`]: `edu`, `virtio-rng`, and the options `last` for the third one.
fn three_devices(scenario: Scenario, last: &[&str]) -> Scenario {
    let rng = format!("virtio-rng-pci,{VIRTIO}").replace("addr=2", "addr=4");
    device(scenario, &[&["-device", "edu,addr=3,dma_mask=0xffffffffffff", "-device", &rng], last].concat())
}

/// A VM attacks through three functions, and is paused and restarted meanwhile; then it resets itself by a message of a function. Its
/// neighbour's checksums stay correct, and nothing interrupts it: neither it nor the machine gets NMIs, SMIs, INITs or external interrupts.
fn hostile(programs: &Programs) -> Result<Scenario> {
    let config = beside_checksums("", "append = \"boots=3\"\nvcpus = 3\n", "append = \"alone\"\n", programs)?;
    let steps = vec![
        Step::new("phase bars", "pause m/attacker", &["m/attacker is paused"]),
        Step::new("", "resume m/attacker", &["m/attacker runs"]),
        Step::new("phase messages", "restart m/attacker", &["m/attacker restarts"]),
    ];
    let expect = Expect {
        output: ["boot 1", "boot 2", "boot 3", "PASS functions"].map(Into::into).to_vec(),
        notes: vec![NO_DIFFERENCE.into(), NO_DIFFERENCE.into(), SAME_MEMORY.into()],
        absent: vec!["FAIL "],
        // Rows of the account: a physical NMI; a physical INIT or SMI.
        absent_notes: vec!["NMI  ", "spurious"],
        ..Expect::default()
    };
    let card = format!("virtio-net-pci,netdev=net,{VIRTIO}").replace("addr=2", "addr=5");
    let scenario = Scenario { config: Some(config), steps, timeout: 900, expect, ..Scenario::new("pc/amd/devices/hostile", "--exits") };
    Ok(three_devices(scenario, &["-netdev", "user,id=net", "-device", &card]))
}

/// A VM attacks without end through a function, which sends a message at each store to a doorbell. The neighbour on the CPU that the
/// messages interrupt completes, and is interrupted within the limit.
fn storm(attack: &str, programs: &Programs) -> Result<Scenario> {
    // Long slices: an attack sends more messages in one than the limit allows.
    let attacker = format!("append = \"attack={attack}\"\nvcpus = 2\npinned = true\n");
    let neighbour = "append = \"rounds=100 alone\"\ncpus = [1]\n";
    let config = beside_checksums("slice = \"100ms\"\n", &attacker, neighbour, programs)?;
    let expect = Expect {
        status: exit::LEFT,
        output: vec![format!("storm: {attack}"), PASSED.into()],
        absent: vec!["FAIL "],
        absent_notes: vec!["NMI  ", "spurious"],
        disturbed: Some(Disturbed { vm: "neighbour", vectors: 31 }),
        signal: Some(Signal::INT),
        ..Expect::default()
    };
    let name = format!("pc/amd/devices/storm-{attack}");
    let scenario = Scenario { config: Some(config), timeout: 900, expect, ..Scenario::new(name, "--exits") };
    let serial = format!("virtio-serial-pci,max_ports=31,vectors=33,ioeventfd=off,{VIRTIO}").replace("addr=2", "addr=5");
    Ok(three_devices(scenario, &["-device", &serial]))
}
