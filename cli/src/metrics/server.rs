//! The server of `stile metrics`.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::exposition::{CONTENT_TYPE, scrape};
use super::http::{self, Answer, Request};
use crate::control::source::Source;

/// Interval at which the machine's end is polled.
const POLL: Duration = Duration::from_millis(500);

/// Scrapes within this time share a sample, because each sample makes every vCPU exit.
const FRESH: Duration = Duration::from_secs(1);

/// Answers requests until the machine ends. `first`: the metrics now.
///
/// # Errors
/// Connections can't be accepted any more.
pub fn serve(listener: TcpListener, mut source: Source, first: String) -> Result<()> {
    let (send, requests) = sync_channel(0);
    thread::spawn(move || http::accept(&listener, &send));
    let (writing, written) = channel();
    let mut last = (Instant::now(), first.into());
    while !source.connection.has_ended() {
        let request = match requests.recv_timeout(POLL) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => bail!("connections can't be accepted any more"),
        };
        let (status, text) = answer(&request, &mut source, &mut last);
        let of_type = if status == "200 OK" { CONTENT_TYPE } else { "text/plain; charset=utf-8" };
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let headers = format!("Content-Type: {of_type}\r\n{allow}");
        request.answer(Answer { status, headers, text, writing: Some(writing.clone()) });
    }
    // The process ends: answers that are being written are not cut off.
    drop(writing);
    let _ = written.recv_timeout(http::LIMIT);
    Ok(())
}

fn answer(request: &Request, source: &mut Source, last: &mut (Instant, Arc<str>)) -> (&'static str, Arc<str>) {
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        return ("405 Method Not Allowed", "expected GET\n".into());
    }
    if request.target.split('?').next() != Some("/metrics") {
        return ("404 Not Found", "the metrics are at /metrics\n".into());
    }
    if last.0.elapsed() < FRESH {
        return ("200 OK", Arc::clone(&last.1));
    }
    match scrape(source) {
        Ok(text) => {
            *last = (Instant::now(), text.into());
            ("200 OK", Arc::clone(&last.1))
        }
        Err(error) => ("503 Service Unavailable", format!("{error:#}\n").into()),
    }
}
