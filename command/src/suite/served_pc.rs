//! The scenarios of a PC on which one VM serves another one's devices.

use anyhow::Result;

use super::devices::{DHCP, REACHED, RESET_DISK, reset_under_load};
use super::disk::Contents;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario};
use super::served::sockets;
use stile::exit;
use stile::programs::{PASSED, Programs};

/// All of them.
///
/// # Errors
/// A guest is missing.
pub(super) fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    let (amd, vmx) = (machine(2), "[machine]\narch = \"x86_64\"\ncpus = 2\n\n".to_owned());
    Ok(vec![
        pair("pc/amd/devices/served", amd, programs)?,
        pair("pc/served", vmx, programs)?,
        cut_off(programs)?,
        unanswered(programs)?,
        hostile(programs)?,
        debian(),
        sockets("pc/amd/devices/served-sockets", "arch = \"x86_64\"\ncpu = \"max\"\n"),
    ])
}

/// A machine with AMD-V and this number of CPUs.
fn machine(cpus: u32) -> String {
    format!("[machine]\narch = \"x86_64\"\ncpu = \"max\"\ncpus = {cpus}\n\n")
}

/// A VM that executes a program of guests/pc with these arguments, and whose disk the VM `by` serves, if it has a name.
fn vm(programs: &Programs, name: &str, program: &str, append: &str, by: &str) -> Result<String> {
    let served = if by.is_empty() { String::new() } else { format!("[[vm.served]]\ndevice = \"block\"\nby = \"{by}\"\n") };
    let kernel = programs.path(program)?;
    Ok(format!(
        "[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nappend = \"{append}\"\nmemory = \"64M\"\non_reset = \"restart:1\"\n{served}\n"
    ))
}

/// A driver writes and reads a disk that another VM serves, through resets of itself and of its server, while another client of the server
/// attacks that.
fn pair(name: &str, machine: String, programs: &Programs) -> Result<Scenario> {
    let config = [
        machine,
        vm(programs, "web", "served", "driver", "server")?,
        vm(programs, "wild", "served", "wild", "server")?,
        vm(programs, "server", "served", "server clients=2", "")?,
    ];
    // The other client may end at any time.
    let output = ["server: is back", "PASS served: after a reset"].map(String::from).into();
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 3], absent: vec!["FAIL"], ..Expect::default() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new(name, "--exits") })
}

/// A client's reset, which its server does not acknowledge, is reported, and ends: the server loses its access to the client's RAM until it
/// acknowledges. This takes a minute, as time is real.
fn cut_off(programs: &Programs) -> Result<Scenario> {
    let config =
        [machine(1), vm(programs, "web", "served", "driver again", "server")?, vm(programs, "server", "served", "server stubborn", "")?];
    let notes = [
        "web waits: server has not acknowledged a reset of device 1 (block)",
        "web starts without its served devices",
        NO_DIFFERENCE,
        NO_DIFFERENCE,
    ];
    let output = ["server: is cut off", "PASS served: after a reset"].map(String::from).into();
    let expect = Expect { output, notes: notes.map(String::from).into(), absent: vec!["FAIL"], ..Expect::default() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("pc/amd/devices/served-cut-off", "--exits") })
}

/// A server that acknowledges no requests is reported, and its client's driver is told. A driver's reset ends if the server does not
/// acknowledge it. This takes three minutes, as time is real.
fn unanswered(programs: &Programs) -> Result<Scenario> {
    let config =
        [machine(1), vm(programs, "web", "served", "unanswered", "server")?, vm(programs, "server", "served", "server stubborn", "")?];
    let notes = [
        "web waits: server runs, but has not acknowledged requests to device 1 (block)",
        "web waits: server has not acknowledged a reset of device 1 (block)",
        "web: device 1 (block) fails: server has not acknowledged its reset",
        NO_DIFFERENCE,
        NO_DIFFERENCE,
    ];
    let output = ["server: is cut off", "PASS served: unanswered"].map(String::from).into();
    let expect = Expect { output, notes: notes.map(String::from).into(), absent: vec!["FAIL"], ..Expect::default() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("pc/amd/devices/served-unanswered", "--exits") })
}

/// A hostile server, whose client resets while the server touches its RAM, beside a VM that computes.
fn hostile(programs: &Programs) -> Result<Scenario> {
    let config = [
        machine(2),
        vm(programs, "foe", "served", "foe", "")?,
        vm(programs, "client", "resets", "", "foe")?.replace("restart:1", "restart:20"),
        vm(programs, "neighbour", "checksum", "rounds=3", "")?,
    ];
    // The client ends by a reset.
    let expect = Expect { status: exit::GUEST, output: vec![PASSED.into()], absent: vec!["FAIL "], ..Expect::default() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("pc/amd/devices/served-hostile", "--exits") })
}

/// Debian resets itself with requests under way at a disk that the service VM serves. After that the disk works, and a network leads to the
/// emulator. The service VM ends by itself.
fn debian() -> Scenario {
    let arguments = "--arch x86_64 --cpu max --exits --smp 2 --kernel debian --memory 256M --on-reset restart --net user,served";
    let ping = format!("{DHCP} > /dev/null 2>&1; {REACHED}; echo the network answers");
    let scenario = Scenario::new("pc/amd/devices/served-debian", arguments)
        .with("--disk", "{disk},format=raw,served")
        .with("--exec", format!("{}; {ping}", reset_under_load()));
    let output = vec!["stile-devices: serves device 0".into(), "second".into(), RESET_DISK.sum(), "the network answers".into()];
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 2], ..Expect::default() };
    Scenario { disk: Some(Contents::Halves(RESET_DISK)), timeout: 900, expect, ..scenario }
}
