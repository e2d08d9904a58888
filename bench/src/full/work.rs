//! Measured work: a guest's programs, and the unit in which they are counted.

use stile::config::Arch;

/// A piece of work.
#[derive(Debug)]
pub struct Work {
    /// Its name.
    pub name: &'static str,
    /// Name of the unit of work.
    pub unit: &'static str,
    /// Number of virtual CPUs, each pinned to a physical CPU.
    pub vcpus: u16,
    /// Debian's packages that it needs, beside busybox and the libraries of their programs.
    pub packages: &'static [&'static str],
    /// The programs out of these packages, by their paths.
    pub programs: &'static [&'static str],
    /// Shell: the functions `prepare`, and `run`, which does `$units` units.
    pub script: &'static str,
    /// Number of units in the first run; the second run has twice as many. 0 for the boot itself.
    pub units: u32,
}

impl Work {
    /// Whether it is measured on an architecture: the boot only where the emulator counts whole runs; and a compiler is
    /// for its own machine.
    pub fn is_for(&self, arch: Arch) -> bool {
        arch == Arch::Aarch64 || !self.is_boot() && self.name != "compile"
    }

    /// Whether it is the boot itself, which a run does once.
    pub const fn is_boot(&self) -> bool {
        self.units == 0
    }
}

/// A round with each of 16 pairs of a sender and a receiver: 100 bytes through a socket.
const HACKBENCH: &str = "
prepare() { :; }
run() { hackbench -g 1 -f 4 -l $units; }
";

/// A thread of real-time priority that sleeps for a millisecond.
const CYCLICTEST: &str = "
prepare() { :; }
run() { cyclictest --quiet --threads=1 --priority=80 --interval=1000 --loops=$units; }
";

/// The compiler proper, without preprocessor, assembler and linker.
const COMPILE: &str = "
prepare() { :; }
run() {
    i=0
    while [ $i -lt $units ]; do
        /usr/libexec/gcc/aarch64-linux-gnu/14/cc1 -quiet -fpreprocessed -O2 /compile.c -o /tmp/compile.s || return
        i=$((i + 1))
    done
}
";

/// One client that reads a small value, a request at a time: on the last CPU, and the server on the first, because the kernel's choice
/// differs from run to run. (taskset's argument is a mask, which with one CPU and with two is the number of them.)
const REDIS: &str = "
prepare() {
    taskset 1 redis-server --save '' --appendonly no --bind 127.0.0.1 --daemonize yes >/dev/null
    until redis-cli set key:__rand_int__ 123 >/dev/null 2>&1; do sleep 1; done
}
run() { taskset $(nproc) redis-benchmark -h 127.0.0.1 -t get -c 1 -n $units -q; }
";

/// One client that reads small values over loopback, a request at a time, on the last CPU, and the server with one thread on the first.
/// memcached requires an entry for its user.
const MEMCACHED: &str = "
prepare() {
    mkdir -p /etc
    echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
    taskset 1 memcached -u root -l 127.0.0.1 -t 1 -d
    for attempt in 1 2 3 4 5 6 7 8 9; do
        echo version | nc -w 1 127.0.0.1 11211 && return
        sleep 1
    done
    return 1
}
run() { taskset $(nproc) memcslap --servers=127.0.0.1 --concurrency=1 --initial-load=100 --execute-number=$units --test=get; }
";

/// The shell forks, and the child becomes another program, which is linked and ends.
const FORK_EXEC: &str = "
prepare() { :; }
run() {
    i=0
    while [ $i -lt $units ]; do
        /usr/bin/true || return
        i=$((i + 1))
    done
}
";

/// Two threads on two CPUs.
const PIPE: &str = "
prepare() { :; }
run() { /pingpong $units; }
";

/// One process that computes checksums of a file in memory, and hardly ever calls the kernel.
const CPU: &str = "
prepare() { head -c 1048576 /dev/zero >/tmp/data; }
run() { yes /tmp/data | head -n $units | xargs -n $units sha256sum; }
";

/// All of it, in the order in which tables show it.
pub const WORK: [Work; 10] = [
    Work { name: "boot", unit: "boot", vcpus: 1, packages: &[], programs: &[], script: "", units: 0 },
    Work { name: "cpu", unit: "MiB", vcpus: 1, packages: &[], programs: &[], script: CPU, units: 4 },
    Work {
        name: "hackbench",
        unit: "round",
        vcpus: 1,
        packages: &["rt-tests"],
        programs: &["usr/bin/hackbench"],
        script: HACKBENCH,
        units: 100,
    },
    Work {
        name: "compile",
        unit: "compile",
        vcpus: 1,
        packages: &["cpp-14-aarch64-linux-gnu"],
        programs: &["usr/libexec/gcc/aarch64-linux-gnu/14/cc1"],
        script: COMPILE,
        units: 1,
    },
    Work {
        name: "redis",
        unit: "request",
        vcpus: 1,
        packages: &["redis-server", "redis-tools"],
        programs: &["usr/bin/redis-server", "usr/bin/redis-cli", "usr/bin/redis-benchmark"],
        script: REDIS,
        units: 1000,
    },
    Work {
        name: "redis_smp",
        unit: "request",
        vcpus: 2,
        packages: &["redis-server", "redis-tools"],
        programs: &["usr/bin/redis-server", "usr/bin/redis-cli", "usr/bin/redis-benchmark"],
        script: REDIS,
        units: 1000,
    },
    Work {
        name: "memcached",
        unit: "request",
        vcpus: 2,
        packages: &["memcached", "libmemcached-tools"],
        programs: &["usr/bin/memcached", "usr/bin/memcslap"],
        script: MEMCACHED,
        units: 1000,
    },
    Work {
        name: "cyclictest",
        unit: "loop",
        vcpus: 1,
        packages: &["rt-tests"],
        programs: &["usr/bin/cyclictest"],
        script: CYCLICTEST,
        units: 5000,
    },
    Work { name: "pipe", unit: "round trip", vcpus: 2, packages: &[], programs: &[], script: PIPE, units: 10_000 },
    Work {
        name: "fork_exec",
        unit: "fork",
        vcpus: 2,
        packages: &["coreutils"],
        programs: &["usr/bin/true"],
        script: FORK_EXEC,
        units: 200,
    },
];

/// The work of an architecture with these names; all without names.
pub fn choose(arch: Arch, names: &[String]) -> Vec<&'static Work> {
    let wanted = |work: &&Work| names.is_empty() || names.iter().any(|name| name == work.name);
    WORK.iter().filter(|work| work.is_for(arch)).filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn names_choose_work_in_the_tables_order() {
        assert_eq!(choose(Arch::Aarch64, &[]).len(), WORK.len());
        assert!(choose(Arch::X86_64, &["compile".to_owned(), "boot".to_owned()]).is_empty());
        let chosen: Vec<_> =
            choose(Arch::Aarch64, &["pipe".to_owned(), "cpu".to_owned(), "eoi".to_owned()]).iter().map(|work| work.name).collect();
        assert_eq!(chosen, ["cpu", "pipe"]);
    }

    #[test]
    fn scripts_are_shell() {
        for work in &WORK {
            let shell = Command::new("sh").args(["-n", "-c", work.script]).stdin(Stdio::null()).status().unwrap();
            assert!(shell.success(), "{}", work.name);
            assert_eq!(work.units == 0, work.script.is_empty(), "{}", work.name);
        }
    }
}
