//! Measured loads: requests to a disk.

use crate::full::Work;

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

/// All of them, in the order in which tables show them.
pub static LOADS: [Work; 2] = [disk("fio_1", fio!("1")), disk("fio_32", fio!("32"))];

const fn disk(name: &'static str, script: &'static str) -> Work {
    Work { name, unit: "read of 4 KiB", vcpus: 1, packages: &["fio"], programs: &["usr/bin/fio"], script, units: 8000 }
}

/// Those of these names; all without names.
///
/// # Errors
/// Unknown name; the message lists the valid ones.
pub fn choose(names: &[String]) -> Result<Vec<&'static Work>, String> {
    let known = |name: &&String| LOADS.iter().any(|load| load.name == **name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let known: Vec<_> = LOADS.iter().map(|load| load.name).collect();
        return Err(format!("there is no load called {name}; expected some of {}", known.join(", ")));
    }
    Ok(LOADS.iter().filter(|load| names.is_empty() || names.iter().any(|name| name == load.name)).collect())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn scripts_are_shell() {
        for load in &LOADS {
            let shell = Command::new("sh").args(["-n", "-c", load.script]).stdin(Stdio::null()).status().unwrap();
            assert!(shell.success() && load.script.contains("run() {"), "{}", load.name);
        }
    }

    #[test]
    fn names_choose_loads() {
        assert_eq!(choose(&[]).unwrap().len(), LOADS.len());
        assert_eq!(choose(&["fio_32".to_owned()]).unwrap()[0].name, "fio_32");
        assert!(choose(&["disk".to_owned()]).unwrap_err().contains("fio_1, fio_32"));
    }
}
