//! `stile top`: time of a running machine's VMs, from samples of the live ledger.

mod figures;
mod screen;

use std::thread;
use std::time::Duration;

use anyhow::Result;

pub use figures::Order;
use figures::figures;

use crate::args::TopArgs;
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::name;
use crate::control::source::Source;
use crate::{exit, out};

/// Shows figures until the user leaves; with `--once` or `--json` prints them.
///
/// # Errors
/// The machine or VM does not exist; the machine does not answer; the terminal can't be set up.
pub fn top(args: &TopArgs) -> Result<u8> {
    let (machine, vm) = name::split(&args.target);
    let mut source = Source { connection: Connection::open(&Directory::open()?, machine)?, vm: vm.map(str::to_owned) };
    let interval = Duration::from_secs_f64(args.interval);
    let first = source.sample()?;
    if !args.once && !args.json {
        return screen::run(source, first, args, interval);
    }
    let mut earlier = first;
    loop {
        thread::sleep(interval);
        let later = source.sample()?;
        let shown = figures(&earlier, &later, args.vcpus, args.sort, &args.filter);
        if args.json {
            out::json(&shown)?;
        } else {
            out::line(screen::text(&shown))?;
        }
        if args.once {
            return Ok(exit::OK);
        }
        earlier = later;
    }
}
