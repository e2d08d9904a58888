//! A process for each device. One that dies, whatever the reason, is started again: its client's requests wait
//! meanwhile.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
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
    /// It has said that its device is online. Said again, it counts for nothing.
    is_online: bool,
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
        processes.push(Process { child: start(number, argument, sender.clone())?, failures: 0, is_online: false, is_off: false });
    }
    for (number, news) in receiver {
        let process = &mut processes[number];
        match news {
            News::Line(line) => match &line[..] {
                ONLINE if !process.is_online => {
                    (process.failures, process.is_online) = (0, true);
                    announce(number, &arguments[number]);
                }
                OFF => process.is_off = true,
                ON => process.is_off = false,
                _ => {}
            },
            News::Ended => {
                let status = end(&mut process.child)?;
                (process.failures, process.is_online) = (process.failures + 1, false);
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
    processes.iter_mut().try_for_each(|Process { child, .. }| end(child).map(drop))
}

/// Ends a process. One whose output has ended need not have: a client that has taken it over can close its output.
fn end(child: &mut Child) -> io::Result<ExitStatus> {
    child.kill()?;
    child.wait()
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
        while let Some(line) = next_line(&mut output) {
            // The supervisor may have ended.
            let _ = sender.send((number, News::Line(line)));
        }
        let _ = sender.send((number, News::Ended));
    });
    Ok(child)
}

/// The next line of a process. A client may have taken it over: what it writes is of any bytes, and has a bound, here and in the channel.
fn next_line(output: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    let read = output.take(LONGEST).read_until(b'\n', &mut line).ok()?;
    (read > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_bytes_are_read_to_the_end() {
        let mut output = &b"\xff\nonline\n0123456789abcdefg\noff"[..];
        let lines: Vec<_> = std::iter::from_fn(|| next_line(&mut output)).collect();
        assert_eq!(lines, ["\u{fffd}", ONLINE, "0123456789abcdef", "g", OFF]);
    }

    #[test]
    fn a_process_that_closed_its_output_does_not_hold_up_the_supervisor() {
        let mut child = Command::new("sh").args(["-c", "exec >&-; exec sleep 1000"]).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        assert_eq!(next_line(&mut output), None);
        assert!(!end(&mut child).expect("a status").success());
    }
}
