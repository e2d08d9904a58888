//! Measured loads: requests to a disk, and to another VM by a network.

use crate::full::Work;

/// A load.
#[derive(Debug)]
pub struct Load {
    /// The guest's work.
    pub work: Work,
    /// Destination of its requests.
    pub to: Destination,
}

/// Destination of a load's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// A disk.
    Disk,
    /// A second VM with the same files, by a network. That VM does [`SERVER`] units: it answers until the client is done.
    Vm,
}

/// Number of units of the VM that answers requests.
pub const SERVER: u32 = 0;

/// Requests of a kind of fio's (`randread`, `randwrite`) to random places of a disk, each of 4 KiB, past the page cache, with this many at a
/// time.
///
/// The drivers are loaded when a disk's server is online.
macro_rules! fio {
    ($kind:literal, $depth:literal) => {
        concat!(
            "
prepare() {
    sleep 8
    for driver in /stile/drivers/*; do insmod $driver; done
    for second in $(seq 60); do [ -b /dev/vda ] && return; sleep 1; done
    return 1
}
run() {
    fio --name=load --filename=/dev/vda --size=1g --rw=",
            $kind,
            " --norandommap --bs=4k --direct=1 --number_ios=$units \\
        --ioengine=libaio --thread --disk_util=0 --eta=never --randseed=1 --iodepth=",
            $depth,
            "
}
"
        )
    };
}

/// Script for requests to another VM: `$answer` is the server's program, `$ask` the client's, and `$try` succeeds once the server answers.
///
/// The drivers are loaded when a card's server is online.
macro_rules! network {
    ($answer:expr, $try:expr, $ask:expr) => {
        concat!(
            "
server=10.9.0.1
prepare() {
    sleep 8
    for driver in /stile/drivers/*; do insmod $driver; done
    for second in $(seq 60); do [ -e /sys/class/net/eth0 ] && break; sleep 1; done
    ip link set eth0 up
    if [ $units = 0 ]; then
        ip addr add $server/24 dev eth0
    else
        ip addr add 10.9.0.2/24 dev eth0
        for second in $(seq 60); do ",
            $try,
            " && return; sleep 1; done
        return 1
    fi
}
run() {
    if [ $units = 0 ]; then
        ",
            $answer,
            "
    else
        ",
            $ask,
            "
    fi
}
"
        )
    };
}

/// Script for clients that read a value of 3 bytes from redis in another VM, each with one request at a time.
macro_rules! redis {
    ($clients:literal) => {
        network!(
            "redis-server --save '' --appendonly no --bind $server --protected-mode no",
            "redis-cli -h $server set key:__rand_int__ 123",
            concat!("redis-benchmark -h $server -t get -n $units -q -c ", $clients, " && redis-cli -h $server shutdown nosave")
        )
    };
}

/// Script for a byte to another VM and back, over one TCP connection.
const TCP: &str = network!("/pingpong serve $server:9000", "/pingpong $server:9000 1", "/pingpong $server:9000 $units");

/// All of them, in the order in which tables show them.
pub static LOADS: [Load; 6] = [
    disk("fio_1", READ, fio!("randread", "1")),
    disk("fio_32", READ, fio!("randread", "32")),
    disk("write_32", WRITE, fio!("randwrite", "32")),
    network("tcp_1", "round trip", &[], &[], TCP),
    network("redis_1", "request", REDIS_PACKAGES, REDIS_PROGRAMS, redis!("1")),
    network("redis_50", "request", REDIS_PACKAGES, REDIS_PROGRAMS, redis!("50")),
];

const REDIS_PACKAGES: &[&str] = &["redis-server", "redis-tools"];
const REDIS_PROGRAMS: &[&str] = &["usr/bin/redis-server", "usr/bin/redis-cli", "usr/bin/redis-benchmark"];

const READ: &str = "read of 4 KiB";
const WRITE: &str = "write of 4 KiB";

const fn disk(name: &'static str, unit: &'static str, script: &'static str) -> Load {
    let work = Work { name, unit, vcpus: 1, packages: &["fio"], programs: &["usr/bin/fio"], script, units: 8000 };
    Load { work, to: Destination::Disk }
}

const fn network(
    name: &'static str,
    unit: &'static str,
    packages: &'static [&'static str],
    programs: &'static [&'static str],
    script: &'static str,
) -> Load {
    Load { work: Work { name, unit, vcpus: 1, packages, programs, script, units: 4000 }, to: Destination::Vm }
}

/// Those of these names; all without names.
///
/// # Errors
/// Unknown name; the message lists the valid ones.
pub fn choose(names: &[String]) -> Result<Vec<&'static Load>, String> {
    let known = |name: &&String| LOADS.iter().any(|load| load.work.name == **name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let known: Vec<_> = LOADS.iter().map(|load| load.work.name).collect();
        return Err(format!("there is no load called {name}; expected some of {}", known.join(", ")));
    }
    Ok(LOADS.iter().filter(|load| names.is_empty() || names.iter().any(|name| name == load.work.name)).collect())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn scripts_are_shell() {
        for load in &LOADS {
            let shell = Command::new("sh").args(["-n", "-c", load.work.script]).stdin(Stdio::null()).status().unwrap();
            assert!(shell.success() && load.work.script.contains("run() {"), "{}", load.work.name);
        }
    }

    #[test]
    fn names_choose_loads() {
        assert_eq!(choose(&[]).unwrap().len(), LOADS.len());
        assert_eq!(choose(&["fio_32".to_owned()]).unwrap()[0].work.name, "fio_32");
        assert!(choose(&["disk".to_owned()]).unwrap_err().contains("fio_1, fio_32, write_32"));
    }
}
