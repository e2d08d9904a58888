//! Tests that take too long for the suite: each runs only if it is named, `stile test --only long/NAME`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use anyhow::Result;
use rustix::process::Signal;
use stile_board::MAX_CPUS;

use super::counted;
use super::disk::{Contents, Disk};
use super::installer;
use super::operated::come_and_go;
use super::report_in_browser;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use super::served;
use super::share::many_vms;
use super::system_disk;
use super::test::Test;
use super::together;
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::disk::drive::Drive;
use stile::programs::Programs;

/// A test that is a function, and its name.
type Function = (&'static str, fn() -> Result<(), String>);

/// Tests that are functions.
pub const TESTS: [Function; 3] = [("long/killed", killed), (counted::NAME, counted::test), (installer::WHOLE, installer::installs_on_arm)];

/// Those on a PC.
pub const TESTS_ON_PC: [Function; 1] = [(installer::WHOLE_ON_PC, installer::installs_on_pc)];

/// Prefix of such tests' names.
pub const PREFIX: &str = "long/";

/// Tests that are scenarios.
///
/// # Errors
/// A guest is missing.
pub fn scenarios(programs: &Programs) -> Result<Vec<Test>> {
    let hostile = programs.path("hostile")?;
    let most = [
        many_vcpus("long/64-vcpus", "--smp 64", 64),
        many_vcpus("long/64-vcpus-pc", "--arch x86_64 --smp 2", 64),
        many_vcpus("long/256-vcpus-amd", "--arch x86_64 --cpu max --kernel debian:6.1 --smp 256", 256),
    ];
    // On more CPUs than the emulator's host may have: while a CPU waits for a lock, its holder may have none.
    let many = many_vms("long/24-vms-on-4", 4, 24, programs)?;
    let gigabyte = Test::made("long/gigabyte", Arch::Aarch64, move || Ok(gigabyte(&hostile)));
    let report = report_in_browser::scenario(programs)?;
    let visits = come_and_go("long/come-and-go", programs)?;
    let all = together::scenario("long/operator", programs)?;
    let more = [many_cpus(programs)?, many, report, visits, all, served::server_dies("long/server-dies", 100)];
    Ok(most.into_iter().chain(more).chain(served::killed_often()).map(Test::scenario).chain([gigabyte]).collect())
}

/// Those on a PC.
///
/// # Errors
/// A guest is missing.
pub fn scenarios_on_pc(programs: &Programs) -> Result<Vec<Scenario>> {
    Ok(vec![come_and_go("long/come-and-go-pc", programs)?, together::scenario("long/operator-pc", programs)?])
}

/// A VM with many vCPUs, to a shell: on as many CPUs, or on a PC with VMX on as few as its emulator affords.
fn many_vcpus(name: &str, machine: &str, vcpus: u32) -> Scenario {
    let scenario = Scenario::new(name, &format!("{machine} --vcpus {vcpus} --memory 1G --exits")).with("--exec", "nproc");
    let expect = Expect { output: vec![format!("{vcpus}\n")], notes: vec![NO_DIFFERENCE.into()], ..Expect::default() };
    Scenario { timeout: 1800, expect, ..scenario }
}

/// A machine of as many CPUs as there may be, with vCPUs on a few of them: affinities with Aff1 up to 31.
fn many_cpus(programs: &Programs) -> Result<Scenario> {
    let last = MAX_CPUS - 1;
    let arguments = format!("--vcpus 4 --cpus 0,255-256,{last} --memory 64M --cpu max --smp {MAX_CPUS} --exits");
    let scenario = Scenario::new(format!("long/{MAX_CPUS}-cpus"), &arguments).with("--kernel", programs.path("smp")?);
    Ok(Scenario { timeout: 1800, expect: passed(), ..scenario.with("--append", "stile") })
}

/// Debian copies a gigabyte on its disk, while another VM attacks Stile on the same CPUs.
fn gigabyte(hostile: &str) -> Scenario {
    let disk = Disk { half: 1 << 30 };
    let read = |skip| format!("dd if=/dev/vda bs=1M count=1024 skip={skip} iflag=direct | sha256sum");
    let copy = "dd if=/dev/vda of=/dev/vda bs=1M count=1024 seek=1024 iflag=direct oflag=direct";
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"disk\"\nkernel = \"debian\"\nvcpus = 2\nmemory = \"256M\"\nexec = \"{copy}; sync; {}\"\n\
         [[vm.disk]]\nfile = \"disk.img\"\nformat = \"raw\"\n\n\
         [[vm]]\nname = \"attacker\"\nkernel = \"{}\"\nvcpus = 2\nmemory = \"64M\"\nappend = \"stile soak=1000000 seed=1 resets=2\"\n",
        read(1024),
        hostile
    );
    let expect = Expect { output: vec![disk.sum()], notes: vec![NO_DIFFERENCE.into(); 2], absent: vec!["FAIL "], ..Expect::default() };
    let scenario = Scenario::new("long/gigabyte", "--exits");
    Scenario { config: Some(config), disk: Some(Contents::Halves(disk)), timeout: 5400, expect, ..scenario }
}

/// Times that a run is killed.
const ROUNDS: u64 = 6;

/// Verifies numbers in the order of their writes, then writes further ones, each flushed before it is reported.
const COUNT: &str = "f=/root/count; touch $f; n=$(tail -n 1 $f); n=${n:-0}; seq 1 $n | cmp -s - $f || echo damaged; echo have $n; \
                     while :; do n=$((n+1)); echo $n >> $f; sync $f; echo wrote $n; done";

/// `stile run` is killed at random moments: no process is left, the image is free and consistent, and everything that the guest flushed is
/// in it.
fn killed() -> Result<(), String> {
    let base = system_disk::base(Arch::Aarch64)?;
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let image = dir.path().join("disk.qcow2");
    fs::copy(&base, &image).map_err(|error| format!("copying {}: {error}", base.display()))?;
    let mut flushed = 0;
    for round in 1..=ROUNDS {
        let random = getrandom::u64().map_err(|error| error.to_string())?;
        // Some are killed while they start, the others after some numbers.
        let numbers = if round == 2 { None } else { Some(random % 200) };
        let (mut run, lines) = start(&image)?;
        let seen = watch(lines, numbers, Duration::from_millis(random % 20_000));
        let children = descendants(run.id());
        run.kill().and_then(|()| run.wait()).map_err(|error| error.to_string())?;
        let seen = seen.map_err(|what| format!("round {round}: {what}"))?;
        if let Some((had, wrote)) = seen {
            if had < flushed {
                return Err(format!("round {round}: the guest had flushed {flushed} numbers, and the image has {had}"));
            }
            flushed = wrote;
        }
        gone(&children).map_err(|pid| format!("round {round}: process {pid} is left"))?;
        let drive = Drive { file: image.clone(), read_only: false, format: None, served: false, in_memory: false };
        drive.check("").map_err(|error| format!("round {round}: {error:#}"))?;
    }
    if flushed == 0 { Err("no number was written".into()) } else { Ok(()) }
}

fn start(image: &Path) -> Result<(Child, ChildStdout), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg("run").arg("--disk").arg(image).args(["--vcpus", "2", "--exec", COUNT]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = end_with_parent(&mut command, Signal::TERM).spawn().map_err(|error| error.to_string())?;
    let output = child.stdout.take().ok_or("no output")?;
    Ok((child, output))
}

/// Follows the guest until it has written `wanted` numbers, or for a while if `wanted` is 0. Returns the numbers found
/// at start, and the last one reported.
fn watch(lines: ChildStdout, numbers: Option<u64>, a_while: Duration) -> Result<Option<(u64, u64)>, String> {
    let Some(numbers) = numbers else {
        thread::sleep(a_while);
        return Ok(None);
    };
    let mut had = None;
    for line in BufReader::new(lines).lines().map_while(Result::ok) {
        let number = |word: &str| line.trim().strip_prefix(word).and_then(|number| number.parse::<u64>().ok());
        if line.contains("damaged") {
            return Err("numbers are missing or damaged".into());
        }
        if let Some(number) = number("have ") {
            had = Some(number);
        }
        if let (Some(had), Some(wrote)) = (had, number("wrote "))
            && wrote >= had + 1 + numbers
        {
            return Ok(Some((had, wrote)));
        }
    }
    Err("the run ended by itself".into())
}

/// All descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()).collect()
    };
    let mut all = children(pid);
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        all.extend(children(pid));
        next += 1;
    }
    all
}

/// Waits until the processes have ended, or returns one that has not.
fn gone(pids: &[u32]) -> Result<(), u32> {
    for pid in pids {
        // The system reaps them soon after their parent; a minute is a fault.
        let is_left = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        let left = (0..600).all(|_| {
            thread::sleep(Duration::from_millis(100));
            is_left()
        });
        if left {
            return Err(*pid);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_stay_are_found() {
        let mut child = Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let mut found = Vec::new();
        while found.is_empty() {
            found = descendants(child.id());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fs::exists(format!("/proc/{}", found[0])).unwrap(), "the child's child stays");
        for pid in &found {
            let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
        }
        gone(&found).unwrap();
    }
}
