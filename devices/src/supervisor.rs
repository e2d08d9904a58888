//! A process for each device. One that dies, whatever the reason, is started again: its client's requests wait
//! meanwhile.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use crate::vsock::mesh::Mesh;

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

/// The work of a device's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Serves the device.
    Serve,
    /// Answers all requests with errors: the device was given up.
    Fail,
}

impl Mode {
    /// Option of `stile-devices` for a process of this kind.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Serve => "--device",
            Self::Fail => "--failed",
        }
    }
}

/// A device's process.
struct Process {
    /// `None` if there is none, and no other can be started.
    child: Option<Child>,
    mode: Mode,
    /// Starts that ended before the device was online, since it was last online.
    failures: u32,
    /// It has said that its device is online. Said again, it counts for nothing.
    is_online: bool,
    /// The client is off. Kept when the process is started again.
    is_off: bool,
}

impl Process {
    /// Whether it serves a client that is not off.
    const fn is_needed(&self) -> bool {
        self.child.is_some() && !self.is_off
    }

    /// Tries again to serve a device that was given up, whose client is off: nobody notices that the process that fails requests ends, and
    /// the client finds the device if it is turned on again.
    fn try_again(&mut self) {
        if self.mode == Mode::Serve {
            return;
        }
        (self.mode, self.failures) = (Mode::Serve, 0);
        if let Some(Err(error)) = self.child.as_mut().map(Child::kill) {
            eprintln!("stile-devices: a process that fails requests can't be ended: {error}");
        }
    }

    /// Starts another process for the device, whose process has ended. After several that ended before the device was online, one that
    /// fails requests: the client must not wait for ever.
    fn restart(&mut self, argument: &str, mut start: impl FnMut(Mode) -> io::Result<Child>) {
        let Some(mut child) = self.child.take() else { return };
        (self.failures, self.is_online) = (self.failures + 1, false);
        let mut why = end(&mut child).map_or_else(|error| error.to_string(), |status| status.to_string());
        if self.failures < MAX_FAILURES {
            eprintln!("stile-devices: {argument} ended ({why}), and is started again");
            thread::sleep(PAUSE);
            match start(self.mode) {
                Ok(child) => return self.child = Some(child),
                Err(error) => why = error.to_string(),
            }
        }
        if self.mode == Mode::Serve {
            (self.mode, self.failures) = (Mode::Fail, 0);
            eprintln!("stile-devices: {argument} is not served any more ({why}): its client gets errors until it is turned off and on");
            match start(self.mode) {
                Ok(child) => return self.child = Some(child),
                Err(error) => why = error.to_string(),
            }
        }
        eprintln!("stile-devices: {argument} has no process ({why}): its client waits until this VM is started again");
    }
}

enum News {
    Line(String),
    Ended,
}

/// Serves a device for each of the `arguments`, in their order, until all clients are off. A device whose process can't be started
/// again, or ends several times before it is online, is given up: its client gets errors until it is turned off, and others are served on.
/// `mesh` has the sockets between processes.
///
/// # Errors
/// A process can't be started at first; all devices were given up.
pub fn run(arguments: &[String], mesh: &Mesh) -> io::Result<()> {
    supervise(arguments, |number, argument, mode, sender| start(number, argument, mode, mesh, sender))
}

/// A line, or the end, of a device's process, by the device's number.
type Sender = SyncSender<(usize, News)>;

fn supervise(arguments: &[String], mut start: impl FnMut(usize, &str, Mode, Sender) -> io::Result<Child>) -> io::Result<()> {
    let (sender, receiver) = mpsc::sync_channel(LINES);
    let mut processes = Vec::new();
    for (number, argument) in arguments.iter().enumerate() {
        let child = Some(start(number, argument, Mode::Serve, sender.clone())?);
        processes.push(Process { child, mode: Mode::Serve, failures: 0, is_online: false, is_off: false });
    }
    for (number, news) in receiver {
        let (process, argument) = (&mut processes[number], &arguments[number]);
        let was_off = process.is_off;
        match news {
            News::Line(line) => match &line[..] {
                ONLINE if !process.is_online => {
                    (process.failures, process.is_online) = (0, true);
                    announce(number, argument, process.mode);
                }
                OFF => process.is_off = true,
                ON => process.is_off = false,
                _ => {}
            },
            News::Ended => process.restart(argument, |mode| start(number, argument, mode, sender.clone())),
        }
        let was_turned_off = process.is_off && !was_off;
        if !processes.iter().any(Process::is_needed) {
            break;
        }
        // Not when a process that fails requests starts, and says that its client is off.
        if was_turned_off {
            processes[number].try_again();
        }
    }
    // Their files are written back: each did so when its client was turned off.
    processes.iter_mut().filter_map(|process| process.child.as_mut()).try_for_each(|child| end(child).map(drop))?;
    if processes.iter().all(|process| process.mode == Mode::Fail) {
        return Err(io::Error::other("no device could be served to the end"));
    }
    Ok(())
}

/// Ends a process. One whose output has ended need not have: a client that has taken it over can close its output.
fn end(child: &mut Child) -> io::Result<ExitStatus> {
    child.kill()?;
    child.wait()
}

fn announce(number: usize, argument: &str, mode: Mode) {
    let verb = match mode {
        Mode::Serve => "serves",
        Mode::Fail => "fails requests of",
    };
    // Nobody may be listening.
    let _ = writeln!(io::stdout(), "stile-devices: {verb} device {number}: {argument}");
}

fn start(number: usize, argument: &str, mode: Mode, mesh: &Mesh, sender: Sender) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args([mode.flag(), &number.to_string(), argument]);
    if mode == Mode::Serve {
        mesh.give(number, &mut command);
    }
    spawn(command, number, sender)
}

/// Starts a process, and reports its lines and its end.
fn spawn(mut command: Command, number: usize, sender: Sender) -> io::Result<Child> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
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
    use std::ops::Range;

    use super::*;

    #[test]
    fn lines_of_any_bytes_are_read_to_the_end() {
        let mut output = &b"\xff\nonline\n0123456789abcdefg\noff"[..];
        let lines: Vec<_> = std::iter::from_fn(|| next_line(&mut output)).collect();
        assert_eq!(lines, ["\u{fffd}", ONLINE, "0123456789abcdef", "g", OFF]);
    }

    /// Processes of shell commands: of each device the first one, and those that are started again; no more than that can be started. The
    /// last `failing` ones of the first device are those that fail requests.
    fn supervise_shells(devices: &[&[&str]], failing: usize) -> io::Result<()> {
        let first = devices[0].len();
        supervise_shells_failing(devices, first - failing..first)
    }

    /// Supervises shells as [`supervise_shells`] does. `failing`: numbers of the first device's shells that fail requests.
    fn supervise_shells_failing(devices: &[&[&str]], failing: Range<usize>) -> io::Result<()> {
        let arguments: Vec<String> = (0..devices.len()).map(|number| format!("device {number}")).collect();
        let mut started = vec![0; devices.len()];
        supervise(&arguments, |number, _, mode, sender| {
            let script = devices[number].get(started[number]).ok_or_else(|| io::Error::other("no process can be started"))?;
            let fails = number == 0 && failing.contains(&started[number]);
            started[number] += 1;
            assert_eq!(mode, if fails { Mode::Fail } else { Mode::Serve });
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            spawn(command, number, sender)
        })
    }

    #[test]
    fn a_device_that_cannot_be_started_again_ends_alone() {
        // The second device ends later, and is served once more.
        let second = ["echo online; sleep 1", "echo online; echo off; exec sleep 1000"];
        let result = supervise_shells(&[&["echo online; echo on"], &second], 0);
        assert!(result.is_ok(), "{result:?}");
    }

    #[test]
    fn a_client_of_a_device_that_never_comes_online_gets_errors() {
        // The process that fails requests is started again, too.
        let first = [&["exit 3"; MAX_FAILURES as usize][..], &["exit 3", "echo online; sleep 1; echo off; exec sleep 1000"]].concat();
        let second = "echo online; echo off; exec sleep 1000";
        let result = supervise_shells(&[&first, &[second]], 2);
        assert!(result.is_ok(), "{result:?}");
        let error = supervise_shells(&[&first], 2).expect_err("nothing is served");
        assert!(error.to_string().contains("no device could be served"), "{error}");
    }

    #[test]
    fn a_device_that_was_given_up_is_tried_again_when_its_client_is_off() {
        let given_up = MAX_FAILURES as usize;
        // The second device needs the supervisor until its process has ended twice.
        let first =
            [&["exit 3"; MAX_FAILURES as usize][..], &["echo online; echo on; echo off; exec sleep 1000", "echo online; echo on"]].concat();
        let second = ["echo online; sleep 2", "echo online; echo off; exec sleep 1000"];
        let result = supervise_shells_failing(&[&first, &second], given_up..given_up + 1);
        assert!(result.is_ok(), "{result:?}");
    }

    #[test]
    fn the_supervisor_ends_when_all_devices_are_given_up() {
        let error = supervise_shells(&[&["echo online"], &["exit 3"]], 0).expect_err("nothing is served");
        assert!(error.to_string().contains("no device could be served"), "{error}");
    }

    #[test]
    fn a_process_that_closed_its_output_does_not_hold_up_the_supervisor() {
        let mut child = Command::new("sh").args(["-c", "exec >&-; exec sleep 1000"]).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        assert_eq!(next_line(&mut output), None);
        assert!(!end(&mut child).expect("a status").success());
    }
}
