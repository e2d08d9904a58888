//! `stile metrics`: the live ledger of a running machine for a monitoring system, as OpenMetrics text.

mod exposition;
mod http;
pub mod parse;
mod server;

use std::net::TcpListener;

use anyhow::{Context, Result};
use serde_json::json;

use crate::args::MetricsArgs;
use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::control::name;
use crate::control::source::Source;
use crate::{exit, out};

/// Serves the metrics until the machine ends; with `--once` prints them.
///
/// # Errors
/// The machine or VM does not exist; it does not answer; the address is in use, or is not this computer's.
pub fn metrics(args: &MetricsArgs) -> Result<u8> {
    let (machine, vm) = name::split(&args.target);
    let mut source = Source { connection: Connection::open(&Directory::open()?, machine)?, vm: vm.map(str::to_owned) };
    if args.once {
        let text = exposition::scrape(&mut source)?;
        out::text(text.as_bytes()).map_err(out::Unwritable)?;
        return Ok(exit::OK);
    }
    // A VM that does not exist is reported before the first scrape.
    let first = exposition::scrape(&mut source)?;
    let listener = TcpListener::bind(args.listen).with_context(|| format!("can't listen on {}", args.listen))?;
    let address = listener.local_addr().context("reading the address")?;
    let machine = source.connection.name.clone();
    let url = format!("http://{address}/metrics");
    if args.json {
        out::json(&json!({"machine": machine, "address": address, "url": url}))?;
    } else {
        out::line(format_args!("{machine}: metrics at {url}"))?;
    }
    server::serve(listener, source, first)?;
    out::note(format_args!("{machine} has ended"));
    Ok(exit::OK)
}
