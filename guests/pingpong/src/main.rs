//! A byte that passes back and forth: `pingpong ROUNDS` between two threads, each on its own CPU, through two pipes, and
//! `pingpong ADDRESS ROUNDS` over a TCP connection to `pingpong serve ADDRESS`.
//!
//! Each side sleeps until the other one's byte arrives, so a round is two wake-ups across CPUs, or VMs. Common
//! benchmarks of this kind let the kernel choose the CPUs, and then measure its choice.

mod tcp;

use std::io::{Read, Write, pipe};
use std::process::ExitCode;
use std::thread;

/// An error, as a sentence.
type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["serve", address] => tcp::serve(address).map_err(Error::from),
        [address, rounds] => rounds.parse().map_err(Error::from).and_then(|rounds| Ok(tcp::play(address, rounds)?)),
        [rounds] => rounds.parse().map_err(Error::from).and_then(play),
        _ => {
            eprintln!("usage: pingpong [ADDRESS] ROUNDS | serve ADDRESS");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a number of round trips.
fn play(rounds: u64) -> Result<(), Error> {
    let (mut here, mut to_here) = pipe()?;
    let (mut there, mut to_there) = pipe()?;
    let other = thread::spawn(move || -> Result<(), Error> {
        pin(1)?;
        for _ in 0..rounds {
            pass(&mut there, &mut to_here)?;
        }
        Ok(())
    });
    pin(0)?;
    for _ in 0..rounds {
        to_there.write_all(&[0])?;
        here.read_exact(&mut [0])?;
    }
    other.join().map_err(|_| "the other thread panicked")?
}

/// Waits for a byte and passes it on.
fn pass(from: &mut impl Read, to: &mut impl Write) -> Result<(), Error> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    to.write_all(&byte)?;
    Ok(())
}

/// Pins this thread to a CPU.
fn pin(cpu: usize) -> Result<(), Error> {
    // SAFETY: the set is this function's own plain bit mask, valid when zeroed, and read only during the
    // call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}
