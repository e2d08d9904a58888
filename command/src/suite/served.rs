//! The scenarios with devices that one VM serves another.

use anyhow::Result;

use super::devices::{DHCP, PING, REACHED, RESET_DISK, reset_under_load};
use super::disk::Contents;
use super::operator::Step;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario, passed};
use stile::config::Arch;
use stile::exit;
use stile::programs::{PASSED, Programs};

/// All of them.
///
/// # Errors
/// A guest is missing.
pub fn all(programs: &Programs) -> Result<Vec<Scenario>> {
    Ok(vec![
        pair(programs)?,
        hostile(programs)?,
        bounded_exits(programs)?,
        turned_off(programs)?,
        never_online(programs)?,
        cut_off(programs)?,
        unanswered(programs)?,
        paused(programs)?,
        balloon(programs)?,
        request_budget(programs)?,
        debian(),
        killed(),
        back_end_killed(),
        back_end_attacked(programs)?,
        folder(),
        balloon_of_debian(),
        network(),
        network_killed(),
        sockets("served/sockets", ""),
        server_dies("served/server-dies", 6),
        most_devices(programs)?,
    ])
}

/// A VM with as many kinds of devices as there may be: two regions of redistributors, a disk of its own and a served network.
fn most_devices(programs: &Programs) -> Result<Scenario> {
    let arguments = "--vcpus 128 --smp 2 --memory 64M --disk {disk},format=raw --net user,served --append stile --exits";
    let scenario = Scenario::new("served/most-devices", arguments).with("--kernel", programs.path("uart")?);
    let expect = Expect { notes: vec![NO_DIFFERENCE.into(); 2], ..passed() };
    Ok(Scenario { disk: Some(Contents::Script("")), expect, ..scenario })
}

/// Debian resets itself with requests under way at a disk that the service VM serves. After that the disk works. The service VM ends by
/// itself.
fn debian() -> Scenario {
    let mut scenario = Scenario::new("served/debian", "--exits --smp 2 --kernel debian --memory 256M --on-reset restart")
        .with("--disk", "{disk},format=raw,served")
        .with("--exec", reset_under_load());
    scenario.disk = Some(Contents::Halves(RESET_DISK));
    let output = vec!["stile-devices: serves device 0".into(), "second".into(), RESET_DISK.sum()];
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 2], ..Expect::default() };
    Scenario { expect, ..scenario }
}

/// Debian writes and reads a disk whose server's process is killed over and over. Then the disk is lost: reads fail.
fn killed() -> Scenario {
    // Processes of devices are started as /proc/self/exe. Without its disk, a process ends before it is online.
    let kill = "while read line; do echo $line; sleep 0.2; head -c 4 /tmp/disk | grep -q lost && rm /tmp/disk; kill -9 $(pidof exe) || true; \
                [ -e /tmp/disk ] || exec cat; done";
    let serve = format!("dd if=/dev/zero of=/tmp/disk bs=1M count=16; stile-devices block=/tmp/disk | {kill}");
    let piece = "dd if=/dev/urandom of=/tmp/a bs=64k count=16; dd if=/tmp/a of=/dev/vda bs=64k seek=$n oflag=direct; \
                 dd if=/dev/vda of=/tmp/b bs=64k skip=$n count=16 iflag=direct; cmp /tmp/a /tmp/b && echo piece $n is the same";
    let lose = "echo lost | dd of=/dev/vda bs=512 count=1 conv=sync oflag=direct; \
                while dd if=/dev/vda of=/dev/null bs=4k count=1 iflag=direct; do sleep 0.1; done; echo reads fail";
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"web\"\nkernel = \"debian\"\nmemory = \"256M\"\nexec = \"for n in 0 16 32 48 64 80 96 112; do {piece}; done; {lose}\"\n\
         [[vm.served]]\ndevice = \"block\"\nby = \"server\"\n\n\
         [[vm]]\nname = \"server\"\nkernel = \"debian\"\nmemory = \"256M\"\nexec = \"{serve}\"\n"
    );
    let pieces = (0..8).map(|n| format!("piece {} is the same", 16 * n));
    let output = pieces.chain(["is not served any more", "reads fail"].map(String::from)).collect();
    // The server prints these while the client continues.
    let concurrent = vec![
        "stile-devices: serves device 0: block=/tmp/disk",
        "stile-devices: block=/tmp/disk ended (signal: 9 (SIGKILL)), and is started again",
        "stile-devices: fails requests of device 0",
    ];
    let expect = Expect { output, concurrent, notes: vec![NO_DIFFERENCE.into(); 2], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("served/killed", "--exits") }
}

/// Follows a server's command line. A back end that dies may leave clusters that nothing refers to, which is status 3.
const CHECK_IMAGE: &str = "; qemu-img check /tmp/disk > /tmp/check; [ $? != 2 ] && echo no table is damaged";

/// Debian writes and reads a disk in QEMU's format, while its back end and the front end of that are killed in turn.
fn back_end_killed() -> Scenario {
    // The first sector of a second disk has the one's word that it writes, and then the other's that both processes were killed.
    let kill = "n=0; while read line; do echo $line; case $line in *'device 0:'*) ;; *) continue;; esac; \
                until grep -q begun /tmp/words; do sleep 0.1; done; sleep 0.5; n=$((n + 1)); \
                case $n in 1) kill -9 $(pidof qemu-storage-daemon);; 2) kill -9 $(pidof exe);; \
                *) echo enough | dd of=/tmp/words bs=512 conv=notrunc,sync; echo enough; exec cat;; esac; done";
    let serve = format!(
        "qemu-img create -q -f qcow2 /tmp/disk 16M; dd if=/dev/zero of=/tmp/words bs=512 count=1; \
         stile-devices block=/tmp/disk,format=qcow2 block=/tmp/words | ({kill}){CHECK_IMAGE}"
    );
    let write = "slot=$((n % 10)); dd if=/dev/urandom of=/tmp/a bs=64k count=4; dd if=/tmp/a of=/dev/vda bs=64k seek=$((slot * 4)) oflag=direct; \
                 md5sum < /tmp/a > /tmp/sum$slot; n=$((n + 1)); \
                 [ $n != 1 ] || echo begun | dd of=/dev/vdb bs=512 count=1 conv=sync oflag=direct";
    let enough = "dd if=/dev/vdb bs=512 count=1 iflag=direct | grep -q enough";
    let check = "for m in $(seq 0 9); do \
                 [ \\\"$(dd if=/dev/vda bs=64k skip=$((m * 4)) count=4 iflag=direct | md5sum)\\\" = \\\"$(cat /tmp/sum$m)\\\" ] || exit 2; done; \
                 echo all pieces are the same";
    let served = "[[vm.served]]\ndevice = \"block\"\nby = \"server\"\n";
    // The driver is loaded anew, and so resets the device.
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"web\"\nkernel = \"debian\"\nmemory = \"256M\"\n\
         exec = \"exec 2> /dev/null; n=0; until [ $n -ge 10 ] && {enough}; do {write}; done; {check}; \
         echo 0001:00:01.0 > /sys/bus/pci/devices/0001:00:01.0/driver/unbind; echo 0001:00:01.0 > /sys/bus/pci/drivers/virtio-pci/bind; {check}\"\n\
         {served}{served}\n\
         [[vm]]\nname = \"server\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \"{serve}\"\n"
    );
    let output = ["all pieces are the same", "all pieces are the same", "no table is damaged"].map(String::from).into();
    // After both were killed, while the client continues: it goes on until it reads this.
    let concurrent = vec!["server | enough"];
    // The client sleeps until its disk is served: it took some 700,000 exits when it did not. A slow host causes more of its attempts.
    let rows = vec![("virtio", 0..=200_000, f64::INFINITY)];
    let notes = vec![NO_DIFFERENCE.into(); 2];
    let expect = Expect { output, concurrent, notes, absent: vec!["not served any more"], rows, ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("served/back-end-killed", "--exits") }
}

/// A client attacks its disk's back end, which ends and is started again, beside Debian with a disk of another one. A back end that wants
/// more memory than it may have is ended.
fn back_end_attacked(programs: &Programs) -> Result<Scenario> {
    // The shell's own number is that of the process's parent.
    let hog = "sh -c 'stile-devices --back-end 70009 $$ \"\" dd if=/dev/zero of=/dev/null bs=160M count=1; \
               grep oom_group_kill /sys/fs/cgroup/stile-devices-70009/memory.events'";
    let serve = format!(
        "for n in a b; do qemu-img create -q -f qcow2 /tmp/$n 8M; done; \
         stile-devices block=/tmp/a,format=qcow2 block=/tmp/b,format=qcow2 | (read line; echo $line; {hog} > /tmp/ended; exec cat); cat /tmp/ended"
    );
    let piece = "dd if=/dev/urandom of=/tmp/a bs=64k count=4; dd if=/tmp/a of=/dev/vda bs=64k seek=$((n * 4)) oflag=direct; \
                 dd if=/dev/vda of=/tmp/b bs=64k skip=$((n * 4)) count=4 iflag=direct; cmp /tmp/a /tmp/b || exit 1";
    let served = "[[vm.served]]\ndevice = \"block\"\nby = \"server\"\n";
    let config = [
        "[machine]\ncpus = 2\n\n".to_owned(),
        vm(programs, "wild", "served", "stile wild others rounds=10", "server")?,
        format!(
            "[[vm]]\nname = \"web\"\nkernel = \"debian\"\nmemory = \"256M\"\n\
             exec = \"exec 2> /dev/null; for n in $(seq 0 30); do {piece}; done; echo the disk is as written\"\n{served}"
        ),
        format!("[[vm]]\nname = \"server\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \'\'\'{serve}\'\'\'\n"),
    ];
    let output = ["the disk is as written", "oom_group_kill 1"].map(String::from).into();
    let notes = vec![NO_DIFFERENCE.into(); 3];
    let expect = Expect { output, notes, absent: vec!["FAIL ", "not served any more"], ..Expect::default() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("served/back-end-attacked", "--exits") })
}

/// Debian uses a folder and random bytes of a server. Their processes and the folder's back end are killed: the folder is mounted again.
fn folder() -> Scenario {
    // The client asks by a file.
    let kill = "(until rm /tmp/folder/kill; do sleep 0.2; done; kill -9 $(pidof virtiofsd) $(pidof exe)) 2> /dev/null &";
    let serve = format!(
        "mkdir /tmp/folder; echo of the server > /tmp/folder/from; chmod 600 /tmp/folder/from; {kill} \
         stile-devices fs=/tmp/folder,tag=src rng; cat /tmp/folder/to"
    );
    let random = "[ \"$(dd if=/dev/hwrng bs=64 count=4 | wc -c)\" = 256 ] && echo random bytes";
    // Links lead to the client's own files.
    let client = format!(
        "mkdir /mnt; mount -t virtiofs src /mnt && cat /mnt/from; echo of the client > /mnt/to; ln -s /etc/hostname /mnt/name; cat /mnt/name; \
         mknod /mnt/node b 8 0 || echo no devices; {random}; \
         touch /mnt/kill; until cat /mnt/from > /dev/null 2> /tmp/error; [ -s /tmp/error ]; do sleep 0.2; done; cat /tmp/error; \
         until umount -l /mnt; mount -t virtiofs src /mnt && grep client /mnt/to; do sleep 0.5; done; {random}"
    );
    let served = |device: &str| format!("[[vm.served]]\ndevice = \"{device}\"\nby = \"server\"\n");
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"web\"\nkernel = \"debian:6.12\"\nmemory = \"256M\"\nexec = \'\'\'exec 2> /dev/null; {client}\'\'\'\n{}{}\n\
         [[vm]]\nname = \"server\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \'\'\'{serve}\'\'\'\n",
        served("fs"),
        served("rng")
    );
    let output = [
        "web    | of the server",
        "web    | web",
        "no devices",
        "random bytes",
        "Input/output error",
        "web    | of the client",
        "random bytes",
        "server | of the client",
    ];
    let output = output.map(String::from).into();
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 2], absent: vec!["not served any more"], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("served/folder", "--exits") }
}

/// Debian gives half of its RAM back, uses the rest, and takes all of it back.
fn balloon_of_debian() -> Scenario {
    let pages = (128 << 20) / 4096;
    let client = format!(
        "until grep -q 'balloon_inflate {pages}' /proc/vmstat; do sleep 0.5; done; head -c 50000000 /dev/zero > /tmp/a; md5sum /tmp/a; rm /tmp/a; \
         rmmod virtio_balloon; grep balloon_deflate /proc/vmstat; head -c 100000000 /dev/zero > /tmp/a; md5sum /tmp/a"
    );
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"web\"\nkernel = \"debian:6.12\"\nmemory = \"256M\"\nexec = \"{client}\"\n\
         [[vm.served]]\ndevice = \"balloon\"\nby = \"server\"\n\
         [[vm]]\nname = \"server\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \"stile-devices balloon=128\"\n"
    );
    // MD5 of as many zeros.
    let output = [
        "the client's balloon has 128 MiB, of which Stile has 1",
        "6c89658d051ac5d1938ae1b749700753",
        "balloon_deflate 32768",
        "0f86d7c5a6180cf9584c1d21144d85b0",
    ];
    let expect = Expect { output: output.map(String::from).into(), notes: vec![NO_DIFFERENCE.into(); 2], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("served/balloon-of-debian", "--exits") }
}

/// Debian writes a disk of a server that dies `times` times: its kernel panics, its system restarts without writing anything, and its
/// supervisor is killed, in turn. Everything that was acknowledged is on the disk, flushed or not, and the client continues.
pub(super) fn server_dies(name: &str, times: u32) -> Scenario {
    // The last sector has the number of times that the server has started.
    let count = |from: &str| format!("$(dd if={from} bs=512 skip=16383 count=1 iflag=direct | tr -d '\\0')");
    let die = "case $((n % 3)) in 0) killall -9 stile-devices;; 1) echo c > /proc/sysrq-trigger;; *) reboot -n -f;; esac";
    let serve = format!(
        "exec 2> /dev/null; \
         while n={}; n=$((n + 1)); echo $n | dd of=/dev/vda bs=512 seek=16383 conv=sync oflag=direct; \
         [ $n -gt {times} ] || (sleep $((2 + n % 4)); {die}) & stile-devices block=/dev/vda; [ $? -gt 128 ]; do :; done",
        count("/dev/vda")
    );
    let sum = "$(dd if=/dev/vda bs=64k skip=$((slot * 8)) count=8 iflag=direct | md5sum)";
    let check = format!(
        "for slot in $(seq 0 13); do [ ! -e /tmp/sum$slot ] || [ \"{sum}\" = \"$(cat /tmp/sum$slot)\" ] || {{ echo piece $slot is lost; exit 2; }}; done"
    );
    let write = "slot=$((n % 14)); dd if=/dev/urandom of=/tmp/a bs=64k count=8; \
                 dd if=/tmp/a of=/dev/vda bs=64k seek=$((slot * 8)) oflag=direct; md5sum < /tmp/a > /tmp/sum$slot; n=$((n + 1))";
    let client = format!(
        "exec 2> /dev/null; n=0; seen=; while {write}; now={}; \
         if [ \"$now\" != \"$seen\" ]; then {check}; echo as written before start $now; seen=$now; fi; [ $now -le {times} ]; do :; done; \
         echo all $n pieces are the same",
        count("/dev/vda")
    );
    let config = format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"web\"\nkernel = \"debian\"\nmemory = \"256M\"\nexec = \'\'\'{client}\'\'\'\n\
         [[vm.served]]\ndevice = \"block\"\nby = \"server\"\n\n\
         [[vm]]\nname = \"server\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \'\'\'{serve}\'\'\'\n\
         [[vm.disk]]\nfile = \"{{disk}}\"\nformat = \"raw\"\n"
    );
    let output = vec![format!("as written before start {}", times + 1), "pieces are the same".into()];
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 2], absent: vec!["is lost"], ..Expect::default() };
    Scenario { config: Some(config), disk: Some(Contents::Script("")), expect, timeout: 3600, ..Scenario::new(name, "--exits") }
}

/// Times that [`killed_often`] kills a process.
const KILLS: u32 = 100;

/// Debian writes disks whose servers' processes are killed, [`KILLS`] times each: one with a raw image, and one with an image in QEMU's
/// format, of whose front end and back end one is killed in turn. Everything that was written is on the disk.
pub(super) fn killed_often() -> [Scenario; 2] {
    let raw = Scenario {
        config: Some(killed_config("dd if=/dev/zero of=/tmp/disk bs=1M count=16", "", "$(pidof exe)", "")),
        ..Scenario::new("long/served-killed", "--exits")
    };
    let image = "qemu-img create -q -f qcow2 /tmp/disk 16M";
    let processes = "$(pidof $([ $((n % 2)) = 0 ] && echo exe || echo qemu-storage-daemon))";
    let qcow2 = Scenario {
        config: Some(killed_config(image, ",format=qcow2", processes, CHECK_IMAGE)),
        ..Scenario::new("long/back-end-killed", "--exits")
    };
    [(raw, None), (qcow2, Some("no table is damaged"))].map(|(scenario, more)| {
        let output = ["pieces are the same"].into_iter().chain(more).map(String::from).collect();
        let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 2], absent: vec!["not served any more"], ..Expect::default() };
        Scenario { timeout: 3600, expect, ..scenario }
    })
}

/// Configuration of [`killed_often`]: the command that makes the image, the option of `stile-devices` with its format, the numbers of the
/// processes to be killed after the `n`th start, and what follows once the client is off.
fn killed_config(image: &str, format: &str, processes: &str, then: &str) -> String {
    // After the last time the server tells the client by a second disk.
    let kill = format!(
        "n=0; while read line; do case $line in *'device 0:'*) ;; *) continue;; esac; usleep $((n % 10 * 40000)); n=$((n + 1)); \
         if [ $n -gt {KILLS} ]; then echo enough | dd of=/tmp/enough bs=512 conv=notrunc,sync; exec cat; fi; kill -9 {processes} || true; done"
    );
    let serve = format!(
        "{image}; dd if=/dev/zero of=/tmp/enough bs=512 count=1; \
         stile-devices block=/tmp/disk{format} block=/tmp/enough | ({kill}){then}"
    );
    let sum = |slot: &str| format!("$(dd if=/dev/vda bs=64k skip=$(({slot} * 8)) count=8 iflag=direct | md5sum)");
    let write = format!(
        "slot=$((n % 16)); dd if=/dev/urandom of=/tmp/a bs=64k count=8; dd if=/tmp/a of=/dev/vda bs=64k seek=$((slot * 8)) oflag=direct; \
         md5sum < /tmp/a > /tmp/sum$slot; [ \\\"{}\\\" = \\\"$(cat /tmp/sum$slot)\\\" ] || exit 1; n=$((n + 1))",
        sum("slot")
    );
    let check = format!(
        "for slot in $(seq 0 15); do [ ! -e /tmp/sum$slot ] || [ \\\"{}\\\" = \\\"$(cat /tmp/sum$slot)\\\" ] || exit 2; done; \
         echo all $n pieces are the same",
        sum("slot")
    );
    let enough = "dd if=/dev/vdb bs=512 count=1 iflag=direct | grep -q enough";
    let served = "[[vm.served]]\ndevice = \"block\"\nby = \"server\"\n";
    format!(
        "[machine]\ncpus = 2\n\n\
         [[vm]]\nname = \"web\"\nkernel = \"debian\"\nmemory = \"256M\"\n\
         exec = \"n=0; exec 2> /dev/null; while ! {enough}; do {write}; done; {check}\"\n{served}{served}\n\
         [[vm]]\nname = \"server\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \"{serve}\"\n"
    )
}

/// Two VMs, which have these addresses, offer each other a file of half a megabyte, and fetch it `times` times, and until
/// the command `enough` succeeds. `net` is the configuration of each one's card. `up` gives it its address.
fn exchange(addresses: [&str; 2], up: [&str; 2], times: u32, enough: &str, net: &str) -> String {
    let offer = "mkdir /tmp/www; seq 80000 > /tmp/www/numbers; httpd -h /tmp/www";
    let fetch = |address: &str, file: &str| format!("until wget -q -T 3 -O /tmp/{file} http://{address}/{file}; do sleep 1; done");
    let get = |address: &str| {
        format!(
            "n=0; until [ $n -ge {times} ] && {enough}; do {}; cmp /tmp/numbers /tmp/www/numbers && echo the same numbers; n=$((n + 1)); done",
            fetch(address, "numbers")
        )
    };
    // The second one ends when the first one has its file, and the first one when the second one is gone.
    let gone = format!("n=0; while [ $n -lt 3 ]; do ping -c 3 -W 1 {} > /dev/null && n=0 || n=$((n + 1)); done", addresses[1]);
    let first = format!("{}; touch /tmp/www/done; {gone}", get(addresses[1]));
    let second = format!("{}; {}", get(addresses[0]), fetch(addresses[0], "done"));
    let vm = |name: &str, up: &str, then: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\nmemory = \"256M\"\nexec = \"ip link set eth0 up; {up}; {offer}; {then}\"\n{net}\n"
        )
    };
    format!("[machine]\ncpus = 2\n\n{}{}", vm("a", up[0], &first), vm("b", up[1], &second))
}

/// Two VMs reach each other, and the emulator's network, by the service VM. Each has the address that is kept for it, and can't use the
/// other's.
fn network() -> Scenario {
    let other = "ip addr add 10.0.2.16/32 dev eth0; ping -c 3 -W 2 -I 10.0.2.16 10.0.2.2 || true; ip addr del 10.0.2.16/32 dev eth0";
    let first = format!("{DHCP}; {other}; {REACHED}; {PING}; {PING}");
    let config = exchange(["10.0.2.15", "10.0.2.16"], [&first, DHCP], 1, "true", "[[vm.net]]\nserved = true\n");
    let output =
        ["3 packets transmitted, 0 packets received", "1 packets received", "1 packets received", "the same numbers", "the same numbers"];
    let expect = Expect { output: output.map(String::from).into(), notes: vec![NO_DIFFERENCE.into(); 3], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new("served/network", "--exits") }
}

/// Two VMs exchange files while the processes that serve their cards are killed over and over.
fn network_killed() -> Scenario {
    let addresses = ["10.0.9.1", "10.0.9.2"];
    let up = addresses.map(|address| format!("ip addr add {address}/24 dev eth0"));
    // The server offers this file after the first kills.
    let enough = "wget -q -T 3 -O /dev/null http://10.0.9.3/enough";
    let clients = exchange(addresses, [&up[0], &up[1]], 4, enough, "[[vm.served]]\ndevice = \"net\"\nby = \"server\"\n");
    let cards = ["net=lan,mac=52:54:00:00:00:01", "net=lan,mac=52:54:00:00:00:02"];
    // Each line announces a new process; the first and the second process listed are killed in turn.
    let kill = "n=0; while read line; do echo $line; sleep 0.5; set -- $(pidof exe); [ $# -lt 2 ] || [ $((n % 2)) = 0 ] || shift; \
                kill -9 $1 || true; n=$((n + 1)); \
                [ $n -lt 8 ] || touch /tmp/www/enough; done";
    let bridge = "brctl addbr lan; ip addr add 10.0.9.3/24 dev lan; ip link set lan up; mkdir /tmp/www; httpd -h /tmp/www";
    let serve = format!("{bridge}; stile-devices {} | ({kill})", cards.join(" "));
    let server = format!("[[vm]]\nname = \"server\"\nkernel = \"debian:6.12\"\nmemory = \"256M\"\nexec = \"{serve}\"\n");
    // The server prints these while the clients continue.
    let concurrent = vec![
        "stile-devices: net=lan,mac=52:54:00:00:00:01 ended (signal: 9 (SIGKILL)), and is started again",
        "stile-devices: net=lan,mac=52:54:00:00:00:02 ended (signal: 9 (SIGKILL)), and is started again",
    ];
    let expect =
        Expect { output: vec!["the same numbers".into(); 8], concurrent, notes: vec![NO_DIFFERENCE.into(); 3], ..Expect::default() };
    Scenario { config: Some(clients + &server), expect, ..Scenario::new("served/network-killed", "--exits") }
}

/// Two VMs exchange files by sockets, while the processes that serve these are killed a few times. `machine`: lines of the configuration.
pub(super) fn sockets(name: &str, machine: &str) -> Scenario {
    let vm = |name: &str, exec: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\nmemory = \"256M\"\nexec = \"seq 80000 > /tmp/numbers; {exec}\"\n\
             [[vm.served]]\ndevice = \"vsock\"\nby = \"server\"\n"
        )
    };
    let get = "until stile-vsock 4 22 < /tmp/numbers > /tmp/got && cmp -s /tmp/numbers /tmp/got; do sleep 1; done; echo the same numbers";
    let first = format!("for n in 1 2 3 4; do {get}; done; until echo enough | stile-vsock 4 23; do sleep 1; done");
    let offer = "while stile-vsock 22 < /tmp/numbers > /tmp/got || true; do cmp -s /tmp/numbers /tmp/got && echo whole; done";
    let second = format!("({offer}) & until stile-vsock 23 < /dev/null | grep enough; do true; done");
    // Each line is of a new process: the first ones kill the oldest one.
    let kill = "n=0; while read line; do echo $line; n=$((n + 1)); [ $n -gt 6 ] && exec cat; sleep 1; set -- $(pidof exe); kill -9 $1 || true; done";
    let serve = format!("stile-devices vsock=3 vsock=4 | ({kill})");
    let server = format!("[[vm]]\nname = \"server\"\nkernel = \"debian:6.1\"\nmemory = \"256M\"\nexec = \"{serve}\"\n");
    let config = ["[machine]\n", machine, "cpus = 2\n\n", &vm("a", &first), &vm("b", &second), &server].concat();
    // The other VM compares the first file before it takes the second one.
    let output = [vec!["| whole".into()], vec!["the same numbers".into(); 3], vec!["| enough".into()]].concat();
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 3], absent: vec!["not served any more"], ..Expect::default() };
    Scenario { config: Some(config), expect, ..Scenario::new(name, "--exits") }
}

/// A VM, with a device that `by` serves if it is not empty.
fn vm(programs: &Programs, name: &str, program: &str, append: &str, by: &str) -> Result<String> {
    let kernel = programs.path(program)?;
    let served = if by.is_empty() { String::new() } else { format!("[[vm.served]]\ndevice = \"block\"\nby = \"{by}\"\n") };
    Ok(format!("[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\nappend = \"{append}\"\nmemory = \"64M\"\n{served}\n"))
}

/// A driver writes and reads its disk, through resets of itself and of its server, while another client of the server
/// attacks that.
fn pair(programs: &Programs) -> Result<Scenario> {
    let config = [
        "[machine]\ncpus = 2\n\n".to_owned(),
        vm(programs, "web", "served", "stile driver", "server")?,
        vm(programs, "wild", "served", "stile wild", "server")?,
        vm(programs, "server", "served", "stile server clients=2", "")?,
    ];
    // The other client may end at any time; the server ends after both.
    let output = ["server: is back", "PASS nothing_was_under_way", PASSED, PASSED].map(String::from).into();
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 3], ..passed() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("served/pair", "--exits") })
}

/// A hostile server with a client that resets for ever attacks Stile beside a VM that computes.
fn hostile(programs: &Programs) -> Result<Scenario> {
    let config = [
        "[machine]\ncpus = 2\n\n".to_owned(),
        vm(programs, "foe", "served", "stile foe", "")?,
        vm(programs, "client", "resets", "", "foe")?.replace("memory", "on_reset = \"restart:20\"\nmemory"),
        vm(programs, "neighbour", "checksum", "rounds=3", "")?,
    ];
    // The client ends by a reset.
    let output = vec![PASSED.into(), PASSED.into()];
    let expect = Expect { status: exit::GUEST, output, absent: vec!["FAIL "], ..Expect::default() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("served/hostile", "--exits") })
}

/// No exit of a hostile server, of its client, which resets for ever, or of a neighbour of both is longer than an exit may be. Virtual time
/// counts instructions.
fn bounded_exits(programs: &Programs) -> Result<Scenario> {
    let scenario = hostile(programs)?;
    let config = scenario.config.map(|config| config.replace("cpus = 2", "cpus = 1"));
    let expect = Expect { bounded_exits: Some(Arch::Aarch64), ..scenario.expect };
    Ok(Scenario { config, expect, ..Scenario::new("served/bounded-exits", "--icount --exits") })
}

/// The operator turns a server on again that has turned itself off with a request under way. Neither side can be destroyed.
fn turned_off(programs: &Programs) -> Result<Scenario> {
    let config = [
        "[machine]\ncpus = 2\n\n".to_owned(),
        vm(programs, "web", "served", "stile away", "server")?,
        vm(programs, "server", "served", "stile server", "")?,
        vm(programs, "neighbour", "checksum", "rounds=1000000", "")?,
    ];
    let links = "serves devices to other VMs, or they to it: stop it instead";
    let steps = vec![
        // The machine may still be about to end.
        Step::new("EXIT: STATUS=0", "destroy m/server", &[links]).fails(1).patient(),
        Step::new("", "start m/server", &["m/server runs"]),
        // It ends as soon as it has said so, unless the machine is slow.
        Step::new("5 passed, 0 failed", "destroy m/web", &[links]).fails(1).patient(),
        Step::new("", "stop m/neighbour --force", &[]),
    ];
    let output = ["server: is back", "PASS the_server_is_turned_on_again", PASSED].map(String::from).into();
    let expect = Expect { output, notes: vec![NO_DIFFERENCE.into(); 3], ..passed() };
    Ok(Scenario { config: Some(config.concat()), steps, expect, ..Scenario::new("served/turned-off", "--exits") })
}

/// Drivers whose servers never come online, of which one is off and the other runs, are reported, and go on without their devices. Virtual
/// time passes at once while all vCPUs sleep.
fn never_online(programs: &Programs) -> Result<Scenario> {
    let config = [
        "[machine]\ncpus = 1\n\n".to_owned(),
        vm(programs, "web", "served", "stile alone", "gone")?,
        vm(programs, "app", "served", "stile alone", "deaf")?,
        vm(programs, "gone", "checksum", "rounds=1", "")?,
        vm(programs, "deaf", "idle", "", "")?,
    ];
    let passed = "PASS the_wait_for_a_server_ends".to_owned();
    let notes = [
        "web waits for device 1 (block): gone, which serves it, is off",
        "app waits for device 1 (block): deaf runs, but has not offered it",
    ];
    let notes = notes.into_iter().map(String::from).chain(["web", "app"].map(|name| format!("{name}: device 1 (block) fails"))).collect();
    let steps = vec![Step::new("3 passed, 0 failed", "stop m/deaf --force", &[])];
    Ok(Scenario {
        config: Some(config.concat()),
        steps,
        expect: Expect { output: vec![passed; 2], notes, ..Expect::default() },
        ..Scenario::new("served/never-online", "--icount")
    })
}

/// A client's reset, which its server does not acknowledge, is reported, and ends: the server loses its access to the client's RAM until it
/// acknowledges. Virtual time passes at once while all vCPUs sleep.
fn cut_off(programs: &Programs) -> Result<Scenario> {
    let config = [
        "[machine]\ncpus = 1\n\n".to_owned(),
        vm(programs, "web", "served", "stile again", "server")?,
        vm(programs, "server", "served", "stile server stubborn", "")?,
    ];
    let notes =
        ["web waits: server has not acknowledged a reset of device 1 (block)", "web starts without its served devices", NO_DIFFERENCE];
    let notes = notes.map(String::from).into_iter().chain([NO_DIFFERENCE.into()]).collect();
    let output = ["server: is cut off", "PASS the_disk_is_as_before", PASSED].map(String::from).into();
    let expect = Expect { output, notes, ..passed() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("served/cut-off", "--exits --icount") })
}

/// A server that acknowledges no requests, or answers none, is reported, and its client's driver is told. A driver's reset ends if the
/// server does not acknowledge it. Virtual time passes at once while all vCPUs sleep.
fn unanswered(programs: &Programs) -> Result<Scenario> {
    let config = [
        "[machine]\ncpus = 1\n\n".to_owned(),
        vm(programs, "web", "served", "stile unanswered", "server")?,
        vm(programs, "server", "served", "stile server stubborn", "")?,
    ];
    let notes = [
        "web waits: server runs, but has not acknowledged requests to device 1 (block)",
        "web waits: server has acknowledged requests to device 1 (block), but has answered none for 30 s",
        "web waits: server has not acknowledged a reset of device 1 (block)",
        "web: device 1 (block) fails: server has not acknowledged its reset",
    ];
    let notes = notes.map(String::from).into_iter().chain([NO_DIFFERENCE.into(), NO_DIFFERENCE.into()]).collect();
    let output = ["server: is cut off", "PASS the_disk_works_again", PASSED].map(String::from).into();
    let expect = Expect { output, notes, ..passed() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("served/unanswered", "--exits --icount") })
}

/// A server that the operator has paused is not cut off by a driver's reset. Virtual time passes at once while all vCPUs sleep.
fn paused(programs: &Programs) -> Result<Scenario> {
    let config = [
        "[machine]\ncpus = 1\n\n".to_owned(),
        vm(programs, "web", "served", "stile paused", "server")?,
        vm(programs, "server", "served", "stile server", "")?,
    ];
    let steps = vec![
        Step::new("pause the server", "pause m/server", &["m/server is paused"]),
        Step::new("resume the server", "ps", &["running, waits for server (block)"]),
        Step::new("", "resume m/server", &["m/server runs"]),
    ];
    let waits = "web waits: the reset of device 1 (block) is not acknowledged, as server is paused";
    let notes = vec![waits.into(), NO_DIFFERENCE.into(), NO_DIFFERENCE.into()];
    let expect = Expect { output: vec![PASSED.into()], notes, absent: vec!["fails: server"], ..passed() };
    Ok(Scenario { config: Some(config.concat()), steps, expect, ..Scenario::new("served/paused", "--exits --icount") })
}

/// A server gives blocks of its client's RAM back to Stile; they come back clear, and no exit is longer than an exit may be. Virtual time
/// counts instructions.
fn balloon(programs: &Programs) -> Result<Scenario> {
    let config = [
        "[machine]\ncpus = 1\n\n".to_owned(),
        vm(programs, "web", "served", "stile balloon", "server")?.replace("\"block\"", "\"balloon\""),
        vm(programs, "server", "served", "stile balloons", "")?,
    ];
    let (output, notes) = (vec![PASSED.into(), PASSED.into()], vec![NO_DIFFERENCE.into(); 2]);
    let expect = Expect { output, notes, bounded_exits: Some(Arch::Aarch64), ..passed() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("served/balloon", "--icount --exits") })
}

/// Number of requests of [`request_budget`], read one after the other, and of the others: each sector is written and read before, and the
/// end is announced.
const REQUESTS: u64 = 1000;
const OTHERS: u64 = 2 * 64 + 1;

/// Cost of a request of a client that sleeps until it is answered, with a CPU for each side. Virtual time counts instructions.
fn request_budget(programs: &Programs) -> Result<Scenario> {
    let pinned = |vm: String, cpu: u32| vm.replace("memory", &format!("cpus = [{cpu}]\nmemory"));
    let config = [
        "[machine]\ncpus = 2\n\n".to_owned(),
        pinned(vm(programs, "web", "served", &format!("stile count requests={REQUESTS}"), "server")?, 0),
        pinned(vm(programs, "server", "served", "stile server", "")?, 1),
    ];
    let all = REQUESTS + OTHERS;
    let rows = vec![
        ("kick of a server", all..=all, 0.16),
        // Of the client: the interrupt by which its CPU learns of a completion.
        ("IRQ", all..=all + 10, 0.11),
        // None of a request: the server finds its events in memory.
        ("served device", 0..=80, 0.23),
        ("completion for a client", all..=all, 0.19),
    ];
    let expect = Expect { notes: vec![NO_DIFFERENCE.into(); 2], rows, ..passed() };
    Ok(Scenario { config: Some(config.concat()), expect, ..Scenario::new("budgets/served", "--exits --icount") })
}
