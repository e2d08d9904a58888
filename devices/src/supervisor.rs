//! A process for each device. One that dies, whatever the reason, is started again: its client's requests wait
//! meanwhile.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

/// Pause before a process is started again, so that one that can't start occupies no CPU.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts of a process that ends before its device is online, before the supervisor gives up.
const MAX_FAILURES: u32 = 5;

/// Line that a device's process writes when the device is online.
pub const ONLINE: &str = "online";
/// Line that it writes when its client has been turned off.
pub const OFF: &str = "off";
/// Line that it writes when its client has been turned on again.
pub const ON: &str = "on";

enum News {
    Line(String),
    Ended,
}

/// Serves a device for each of the `arguments`, in their order, until all clients are off.
///
/// # Errors
/// A process can't be started, or ends several times before its device is online.
pub fn run(arguments: &[String]) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    let mut children = Vec::new();
    for (number, argument) in arguments.iter().enumerate() {
        children.push(start(number, argument, sender.clone())?);
    }
    let mut off = vec![false; arguments.len()];
    let mut failures = vec![0; arguments.len()];
    for (number, news) in receiver {
        match news {
            News::Line(line) => match &line[..] {
                ONLINE => {
                    failures[number] = 0;
                    println(number, &arguments[number]);
                }
                OFF => off[number] = true,
                ON => off[number] = false,
                _ => {}
            },
            News::Ended => {
                let status = children[number].wait()?;
                failures[number] += 1;
                if failures[number] == MAX_FAILURES {
                    return Err(io::Error::other(format!("{}: {status}", arguments[number])));
                }
                eprintln!("stile-devices: {} ended ({status}), and is started again", arguments[number]);
                thread::sleep(PAUSE);
                children[number] = start(number, &arguments[number], sender.clone())?;
            }
        }
        if off.iter().all(|off| *off) {
            break;
        }
    }
    // Their files are written back: each did so when its client was turned off.
    children.iter_mut().try_for_each(|child| child.kill().and_then(|()| child.wait().map(drop)))
}

fn println(number: usize, argument: &str) {
    // Nobody may be listening.
    let _ = io::Write::write_all(&mut io::stdout(), format!("stile-devices: serves device {number}: {argument}\n").as_bytes());
}

fn start(number: usize, argument: &str, sender: Sender<(usize, News)>) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--device", &number.to_string(), argument]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The supervisor may have ended.
            let _ = sender.send((number, News::Line(line)));
        }
        let _ = sender.send((number, News::Ended));
    });
    Ok(child)
}
