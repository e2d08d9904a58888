//! Clients that wait for a server in vain: a report, and after some minutes the end of the wait.
//!
//! Once a load, or a request of a running driver, waits, an alarm checks one part of all VMs each second ([`waiting`]). A device is
//! reported once until its server answers, or its client's VM starts again.

use core::sync::atomic::{AtomicU8, Ordering};

use stile_board::MAX_VMS;
use stile_virtio::{Owed, device_name};
use stile_wire::{Event, Wait};

use super::late::{GIVEN_UP, REPORTED, STATUS_WAITS, UNACKNOWLEDGED, UNANSWERED, report, report_owed};
use super::link::Link;
use super::waiting::{self, PART};
use super::{Served, of};
use crate::arch::Arch;
use crate::arch::contract::Counter;
use crate::console::{self, log_of};
use crate::vm::{Vm, get};

/// By client, the number of the device in the last [`Event::Waits`] sent to the operator, from 1; 0: the client waits for none.
static SENT: [AtomicU8; MAX_VMS] = [const { AtomicU8::new(0) }; MAX_VMS];

/// Looks at the clients of a part, at the time of the alarm.
pub fn look(now: u64) {
    let part = waiting::part();
    let clients = (part * PART..(part + 1) * PART).filter_map(get);
    let count = clients.filter(|client| look_at_client(client, now)).count();
    waiting::end_part(count != 0, now);
}

/// Looks at the devices of a client, and sends the operator the first one with a reported wait if it has changed. Returns whether the
/// alarm is needed further, which includes a message that is still to be sent.
fn look_at_client(client: &Vm, now: u64) -> bool {
    let links = of(client).map_or(&[][..], Served::links);
    let count = links.iter().filter(|link| look_at(link, now)).count();
    let reported = links.iter().find(|link| link.is_reported.load(Ordering::Relaxed));
    let number = reported.map_or(0, |link| link.number as u8);
    let sent = &SENT[client.number % MAX_VMS];
    if sent.load(Ordering::Relaxed) != number {
        let wait = reported.map(|link| Wait { server: link.server as u8, number, device: link.device });
        if !console::try_event(&Event::Waits { vm: client.number as u8, wait }) {
            return true;
        }
        sent.store(number, Ordering::Relaxed);
    }
    count != 0 || reported.is_some()
}

/// Reports a wait that lasts, or ends it. Returns whether the alarm is needed further.
fn look_at(link: &Link, now: u64) -> bool {
    let Some((awaited, since)) = link.waits_since() else { return look_at_owed(link, now) };
    let seconds = now.saturating_sub(since) / Arch::frequency();
    if seconds >= REPORTED && !link.is_reported.swap(true, Ordering::Relaxed) {
        report(link, awaited);
    }
    if link.only_requests_wait() {
        // Requests that wait are only reported: the server may come back.
        return seconds < REPORTED;
    }
    if seconds < GIVEN_UP || !link.transport.lock().give_up() {
        if seconds >= STATUS_WAITS {
            link.end_status_wait();
        }
        return true;
    }
    link.answer();
    if let (Some(client), Some(server)) = (get(link.client), get(link.server)) {
        let (name, server, device) = (client.name, server.name, device_name(link.device));
        log_of!(client, "{name}: device {} ({device}) fails: {server} has not offered it for {GIVEN_UP} s", link.number);
    }
    false
}

/// Reports a server that is late with a running driver's requests, and later sets DEVICE_NEEDS_RESET. Returns whether the alarm is needed
/// further.
fn look_at_owed(link: &Link, now: u64) -> bool {
    let Some((owed, since)) = link.owed_since(now) else {
        // Otherwise a reset of the client's VM waits, whose report stands.
        if link.transport.lock().is_quiet() {
            link.is_reported.store(false, Ordering::Relaxed);
        }
        return false;
    };
    let seconds = now.saturating_sub(since) / Arch::frequency();
    if seconds >= REPORTED && !link.is_reported.swap(true, Ordering::Relaxed) {
        report_owed(link, owed);
    }
    let limit = match owed {
        Owed::Acknowledgments(_) => UNACKNOWLEDGED,
        Owed::Answers(_) => UNANSWERED,
    };
    if seconds >= limit && !link.server_is_paused() {
        link.change(|transport| transport.set_unanswered(true));
    }
    true
}
