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

/// Reads at random places of a disk, each of 4 KiB, past the page cache, with this many requests at a time.
///
/// The drivers are loaded when a disk's server is online.
macro_rules! fio {
    ($depth:literal) => {
        concat!(
            "
prepare() {
    sleep 8
    for driver in /stile/drivers/*; do insmod $driver; done
    for second in $(seq 60); do [ -b /dev/vda ] && return; sleep 1; done
    return 1
}
run() {
    fio --name=read --filename=/dev/vda --size=1g --rw=randread --norandommap --bs=4k --direct=1 --number_ios=$units \\
        --ioengine=libaio --thread --disk_util=0 --eta=never --randseed=1 --iodepth=",
            $depth,
            "
}
"
        )
    };
}

/// A byte to another VM and back, over one TCP connection.
///
/// The drivers are loaded when a card's server is online.
const TCP: &str = "
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
        for second in $(seq 60); do /pingpong $server:9000 1 && return; sleep 1; done
        return 1
    fi
}
run() {
    if [ $units = 0 ]; then
        /pingpong serve $server:9000
    else
        /pingpong $server:9000 $units
    fi
}
";

/// All of them, in the order in which tables show them.
pub static LOADS: [Load; 3] = [
    disk("fio_1", fio!("1")),
    disk("fio_32", fio!("32")),
    Load {
        work: Work { name: "tcp_1", unit: "round trip", vcpus: 1, packages: &[], programs: &[], script: TCP, units: 4000 },
        to: Destination::Vm,
    },
];

const fn disk(name: &'static str, script: &'static str) -> Load {
    let work = Work { name, unit: "read of 4 KiB", vcpus: 1, packages: &["fio"], programs: &["usr/bin/fio"], script, units: 8000 };
    Load { work, to: Destination::Disk }
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
        assert!(choose(&["disk".to_owned()]).unwrap_err().contains("fio_1, fio_32, tcp_1"));
    }
}
