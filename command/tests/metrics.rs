//! `stile metrics`, of a machine that this test plays on its control socket.

mod common;

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use common::{Sandbox, end};
use stile::config::Arch;
use stile::control::protocol::{self, Reply, Request, State, Status, VmStatus};
use stile::control::sample::{RowSample, Sample, VcpuSample, VmSample};
use stile::metrics::parse::{Series, parse};

/// The socket of a machine called m.
fn listen(sandbox: &Sandbox) -> UnixListener {
    let dir = sandbox.path("stile");
    let _ = fs::remove_dir_all(&dir);
    DirBuilder::new().mode(0o700).create(&dir).expect("a folder");
    UnixListener::bind(dir.join("m.sock")).expect("a socket")
}

/// The sample after `count` others.
fn sample(count: u64) -> Sample {
    let row = |reason: &str, count| RowSample { reason: reason.into(), sub: "other".into(), count, ticks: 10 * count, min: 1, max: 9 };
    let vcpu =
        |count| VcpuSample { now: count, exits_taken: 3 * count, ran: 1, waited: 2, rows: vec![row("IRQ", count), row("HVC", 2 * count)] };
    let vms = [("web", 1), ("db", 2)].map(|(name, vcpus)| VmSample { name: name.into(), vcpus: vec![vcpu(count + 1); vcpus] });
    Sample { counter_hz: 1000, vms: vms.into(), budgets: Vec::new() }
}

/// Acts as the machine for a client: sends `samples` samples, then refusals, then the end.
fn play(listener: &UnixListener, samples: u64, refused: u64) {
    let (mut stream, _) = listener.accept().expect("a client");
    let mut requests = BufReader::new(stream.try_clone().expect("a copy"));
    let mut taken = 0;
    while let Ok(Some(request)) = protocol::read(&mut requests) {
        let reply = match request {
            Request::Hello { version } => Reply::Hello { version },
            Request::Status => {
                let vms = ["web", "db"].map(|name| VmStatus { name: name.into(), state: State::Running, waits_for: None });
                Reply::Status(Status { name: "m".into(), pid: 1, arch: Arch::Aarch64, seconds: 5, vms: vms.into() })
            }
            Request::Sample => {
                taken += 1;
                match taken {
                    _ if taken > samples + refused => break,
                    _ if taken > samples => Reply::Refused { message: "busy".into() },
                    _ => Reply::Sample(sample(taken - 1)),
                }
            }
            other => panic!("{other:?}"),
        };
        protocol::write(&mut stream, &reply).expect("written");
    }
    let _ = protocol::write(&mut stream, &Reply::Ended);
}

fn exits(found: &[Series], vm: &str) -> f64 {
    found.iter().filter(|series| series.name == "stile_vcpu_exits_total" && series.label("vm") == Some(vm)).map(|series| series.value).sum()
}

#[test]
fn metrics_are_printed_once() {
    let sandbox = Sandbox::new(b"");
    let listener = listen(&sandbox);
    thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|_| play(&listener, 1, 0)));
        let print = |target: &str| sandbox.stile(&["metrics", target, "--once"]).output().expect("it runs");
        let both = parse(&String::from_utf8(print("m").stdout).expect("text")).expect("OpenMetrics");
        assert_eq!((exits(&both, "web"), exits(&both, "db")), (3.0, 6.0));
        let one = parse(&String::from_utf8(print("m/db").stdout).expect("text")).expect("OpenMetrics");
        assert_eq!((exits(&one, "web"), exits(&one, "db")), (0.0, 6.0));
        assert!(one.iter().all(|series| series.label("vm").is_none_or(|vm| vm == "db")), "{one:?}");
        let (status, said) = end(&print("m/nobody"));
        assert!(status == 2 && said.contains("there is no VM called nobody; the VMs are web, db"), "{status}: {said}");
    });
    let (status, said) = end(&sandbox.stile(&["metrics", "nobody", "--once"]).output().expect("it runs"));
    assert!(status == 2 && said.contains("called nobody"), "{status}: {said}");
}

/// Sends a request. Returns the status line with the headers, and the body.
fn ask(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("headers");
    (head.to_owned(), body.to_owned())
}

fn serve(sandbox: &Sandbox, listen: &str) -> (Child, SocketAddr) {
    let mut command = sandbox.stile(&["metrics", "m", "--listen", listen]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("the address");
    let address = line.trim().strip_prefix("m: metrics at http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line:?}")).parse().expect("an address");
    (child, address)
}

#[test]
fn metrics_are_served_until_the_machine_ends() {
    let sandbox = Sandbox::new(b"");
    let listener = listen(&sandbox);
    thread::scope(|scope| {
        scope.spawn(|| play(&listener, 3, 1));
        let (child, address) = serve(&sandbox, "127.0.0.1:0");
        let (head, _) = ask(address, "POST /metrics");
        assert!(head.starts_with("HTTP/1.1 405") && head.contains("Allow: GET, HEAD"), "{head}");
        let (head, body) = ask(address, "GET /");
        assert!(head.starts_with("HTTP/1.1 404") && body.contains("/metrics"), "{head}");
        let (mut last, mut scrapes) = (0.0, Vec::new());
        // Scrapes within a second share a sample.
        let refused = loop {
            let (head, body) = ask(address, "GET /metrics?x=1");
            if !head.starts_with("HTTP/1.1 200") {
                break (head, body);
            }
            assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
            let exits = exits(&parse(&body).expect("OpenMetrics"), "db");
            assert!(exits >= last, "a counter fell");
            last = exits;
            scrapes.push(exits);
        };
        scrapes.dedup();
        assert_eq!(scrapes.last(), Some(&18.0), "the third sample: {scrapes:?}");
        assert!(refused.0.starts_with("HTTP/1.1 503") && refused.1.contains("busy"), "{refused:?}");
        // One more ends the machine.
        let (head, _) = ask(address, "GET /metrics");
        assert!(head.starts_with("HTTP/1.1 503"), "{head}");
        let (status, said) = end(&child.wait_with_output().expect("it ends"));
        assert!(status == 0 && said.contains("m has ended"), "{status}: {said}");
    });
}

#[test]
fn a_client_that_does_not_read_delays_no_other_one() {
    let sandbox = Sandbox::new(b"");
    let listener = listen(&sandbox);
    thread::scope(|scope| {
        scope.spawn(|| play(&listener, 1000, 0));
        let (mut child, address) = serve(&sandbox, "127.0.0.1:0");
        let _idle = TcpStream::connect(address).expect("it listens");
        let mut stalled = TcpStream::connect(address).expect("it listens");
        // The answers are more than the kernel's buffers hold.
        let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
        let _ = (0..20).try_for_each(|_| stalled.write_all(requests.as_bytes()));
        let mut other = TcpStream::connect(address).expect("it listens");
        other.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
        write!(other, "GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").expect("written");
        let mut answer = [0; 15];
        let read = other.read_exact(&mut answer);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        read.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    });
}

#[test]
fn a_port_in_use_is_reported() {
    let sandbox = Sandbox::new(b"");
    let listener = listen(&sandbox);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    thread::scope(|scope| {
        scope.spawn(|| play(&listener, 1, 0));
        let (status, said) = end(&sandbox.stile(&["metrics", "m", "--listen", &address.to_string()]).output().expect("it runs"));
        assert!(status == 1 && said.contains(&format!("can't listen on {address}: Address already in use")), "{status}: {said}");
    });
    let (status, said) = end(&sandbox.stile(&["metrics", "m", "--listen", "nowhere"]).output().expect("it runs"));
    assert!(status == 2 && said.contains("--listen"), "{status}: {said}");
}
