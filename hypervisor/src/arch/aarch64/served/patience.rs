//! Clients that wait for a server in vain: a report, and after some minutes the end of the wait.
//!
//! Once a client waits, an alarm looks at one part of all VMs each second ([`waiting`]). A device is reported once until
//! its server answers, or its client's VM starts again.

use core::sync::atomic::Ordering;

use stile_virtio::{Awaited, device_name};

use super::Served;
use super::link::Link;
use super::waiting::{self, PART};
use crate::arch::aarch64::host::timer;
use crate::console::log_of;
use crate::vm::get;

/// Seconds of waiting after which a client's load is reported.
const REPORTED: u64 = 30;
/// Seconds of waiting after which a device without a server is given up: a server that boots on a slow emulator takes a minute or two.
const GIVEN_UP: u64 = 300;

/// Looks at the clients of a part, at the time of the alarm.
pub fn look(now: u64) {
    let part = waiting::part();
    let clients = (part * PART..(part + 1) * PART).filter_map(get);
    let links = clients.flat_map(|client| client.arch.served.map_or(&[][..], Served::links));
    let count = links.filter(|link| look_at(link, now)).count();
    waiting::end_part(count != 0, now);
}

/// Reports a wait that lasts, or ends it. Returns whether a load waits.
fn look_at(link: &Link, now: u64) -> bool {
    let Some((awaited, since)) = link.waits_since() else { return false };
    let seconds = now.saturating_sub(since) / timer::frequency();
    if seconds >= REPORTED && !link.is_reported.swap(true, Ordering::Relaxed) {
        report(link, awaited);
    }
    if seconds < GIVEN_UP || !link.transport.lock().give_up() {
        return true;
    }
    link.answer();
    if let (Some(client), Some(server)) = (get(link.client), get(link.server)) {
        let (name, server, device) = (client.name, server.name, device_name(link.device));
        log_of!(client, "{name}: device {} ({device}) fails: {server} has not offered it for {GIVEN_UP} s", link.number);
    }
    false
}

/// Reports that a client waits for its server.
#[cold]
fn report(link: &Link, awaited: Awaited) {
    let (Some(client), Some(server)) = (get(link.client), get(link.server)) else { return };
    let (name, number, device, server, is_off) = (client.name, link.number, device_name(link.device), server.name, server.power.is_off());
    match awaited {
        Awaited::Reset => log_of!(
            client,
            "{name} waits: {server} has not acknowledged a reset of device {number} ({device}) for {REPORTED} s. See the console of {server}, \
             and restart {server}"
        ),
        Awaited::Server if is_off => log_of!(
            client,
            "{name} waits for device {number} ({device}): {server}, which serves it, is off. See the console of {server}, and start {server}; \
             the device fails after {GIVEN_UP} s"
        ),
        Awaited::Server => log_of!(
            client,
            "{name} waits for device {number} ({device}): {server} runs, but has not offered it for {REPORTED} s. See the console of {server}; \
             the device fails after {GIVEN_UP} s"
        ),
    }
}
