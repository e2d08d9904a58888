//! The HTTP server of `stile metrics`.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tiny_http::{Header, Method, Request, Response, Server};

use super::exposition::{CONTENT_TYPE, scrape};
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
    let server = Server::from_listener(listener, None).map_err(|error| anyhow!("starting the HTTP server: {error}"))?;
    let mut last = (Instant::now(), first);
    while !source.connection.has_ended() {
        let Some(request) = server.recv_timeout(POLL).context("waiting for requests")? else { continue };
        let (status, text) = answer(&request, &mut source, &mut last);
        // The client may have disconnected.
        let _ = request.respond(response(status, text));
    }
    Ok(())
}

fn answer(request: &Request, source: &mut Source, last: &mut (Instant, String)) -> (u16, String) {
    if !matches!(request.method(), Method::Get | Method::Head) {
        return (405, "expected GET\n".into());
    }
    if request.url().split('?').next() != Some("/metrics") {
        return (404, "the metrics are at /metrics\n".into());
    }
    if last.0.elapsed() < FRESH {
        return (200, last.1.clone());
    }
    match scrape(source) {
        Ok(text) => {
            *last = (Instant::now(), text.clone());
            (200, text)
        }
        Err(error) => (503, format!("{error:#}\n")),
    }
}

fn response(status: u16, text: String) -> Response<std::io::Cursor<Vec<u8>>> {
    let of_type = |value: &str| Header::from_bytes("Content-Type", value).ok();
    let header = of_type(if status == 200 { CONTENT_TYPE } else { "text/plain; charset=utf-8" });
    let allow = (status == 405).then(|| Header::from_bytes("Allow", "GET, HEAD").ok()).flatten();
    let response = Response::from_string(text).with_status_code(status);
    header.into_iter().chain(allow).fold(response, Response::with_header)
}
