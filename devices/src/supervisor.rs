//! A process for each device. One that dies, whatever the reason, is started again: its client's requests wait
//! meanwhile.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

/// Pause before a process is started again, so that one that can't start occupies no CPU.
const PAUSE: Duration = Duration::from_millis(200);

/// Starts of a process that ends before its device is online, before the supervisor gives up.
const MAX_FAILURES: u32 = 5;

/// Longest line of a device's process, and number of lines that wait for the supervisor.
const LONGEST: u64 = 16;
const LINES: usize = 64;

/// Line that a device's process writes when the device is online.
pub const ONLINE: &str = "online";
/// Line that it writes when its client has been turned off.
pub const OFF: &str = "off";
/// Line that it writes when its client has been turned on again.
pub const ON: &str = "on";

/// A device's process.
struct Process {
    child: Child,
    /// Starts that ended before the device was online, since it was last online.
    failures: u32,
    /// The client is off. Kept when the process is started again.
    is_off: bool,
}

enum News {
    Line(String),
    Ended,
}

/// Serves a device for each of the `arguments`, in their order, until all clients are off.
///
/// # Errors
/// A process can't be started, or ends several times before its device is online.
pub fn run(arguments: &[String]) -> io::Result<()> {
    let (sender, receiver) = mpsc::sync_channel(LINES);
    let mut processes = Vec::new();
    for (number, argument) in arguments.iter().enumerate() {
        processes.push(Process { child: start(number, argument, sender.clone())?, failures: 0, is_off: false });
    }
    for (number, news) in receiver {
        let process = &mut processes[number];
        match news {
            News::Line(line) => match &line[..] {
                ONLINE => {
                    process.failures = 0;
                    announce(number, &arguments[number]);
                }
                OFF => process.is_off = true,
                ON => process.is_off = false,
                _ => {}
            },
            News::Ended => {
                let status = process.child.wait()?;
                process.failures += 1;
                if process.failures == MAX_FAILURES {
                    return Err(io::Error::other(format!("{}: {status}", arguments[number])));
                }
                eprintln!("stile-devices: {} ended ({status}), and is started again", arguments[number]);
                thread::sleep(PAUSE);
                process.child = start(number, &arguments[number], sender.clone())?;
            }
        }
        if processes.iter().all(|process| process.is_off) {
            break;
        }
    }
    // Their files are written back: each did so when its client was turned off.
    processes.iter_mut().try_for_each(|Process { child, .. }| child.kill().and_then(|()| child.wait().map(drop)))
}

fn announce(number: usize, argument: &str) {
    // Nobody may be listening.
    let _ = writeln!(io::stdout(), "stile-devices: serves device {number}: {argument}");
}

fn start(number: usize, argument: &str, sender: SyncSender<(usize, News)>) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--device", &number.to_string(), argument]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            // A client may have taken the process over: what it writes has a bound, here and in the channel.
            let mut line = String::new();
            match output.by_ref().take(LONGEST).read_line(&mut line) {
                // The supervisor may have ended.
                Ok(1..) => drop(sender.send((number, News::Line(line.trim_end().to_owned())))),
                _ => break,
            }
        }
        let _ = sender.send((number, News::Ended));
    });
    Ok(child)
}
