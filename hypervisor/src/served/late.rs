//! Reports about servers that take too long, and the end of a wait for the acknowledgment of a reset.

use core::sync::atomic::Ordering;

use stile_virtio::{Awaited, Owed, device_name};

use super::link::Link;
use super::waiting;
use crate::arch::Arch;
use crate::arch::contract::Counter;
use crate::console::log_of;
use crate::vm::get;

/// Seconds after which a wait is reported.
pub const REPORTED: u64 = 30;
/// Seconds after which a device without a server is given up: a server that boots on a slow emulator takes a minute or two.
pub const GIVEN_UP: u64 = 300;
/// Seconds after which the next check of its VM ends a load of the status: the sum is less than Linux's limit for a CPU that is stuck.
pub const STATUS_WAITS: u64 = 4;
/// Seconds after which a driver is told that its server does not acknowledge requests.
pub const UNACKNOWLEDGED: u64 = 60;
/// Seconds after which a driver is told that its server answers none of its acknowledged requests. Long: a disk can be busy for a minute.
pub const UNANSWERED: u64 = 300;

/// Seconds after which a server is cut off that has not acknowledged a reset, of its client's VM or by a driver.
const CUT_OFF: u64 = 60;

/// Whether a reset has waited so long that its server, unless paused, must be cut off. Reports a long wait.
pub fn ends(link: &Link) -> bool {
    let seconds = Arch::now().saturating_sub(link.since.load(Ordering::Relaxed)) / Arch::frequency();
    if seconds >= REPORTED && !link.is_reported.swap(true, Ordering::Relaxed) {
        report(link, Awaited::Reset);
        // The alarm sends the operator the wait.
        waiting::begin();
    }
    seconds >= CUT_OFF && !link.server_is_paused()
}

/// Reports that a server was cut off.
#[cold]
pub fn report_cut_off(link: &Link) {
    let (Some(client), Some(server)) = (get(link.client), get(link.server)) else { return };
    let (name, server, device) = (client.name, server.name, device_name(link.device));
    log_of!(
        client,
        "{name} starts without its served devices: {server} has not acknowledged a reset of device {} ({device}) for {CUT_OFF} s, and has no \
         access to the memory of {name} until it does. Restart {server} if it hangs",
        link.number
    );
}

/// Reports that a server was cut off, since it did not acknowledge a reset by a driver.
#[cold]
pub fn report_failure(link: &Link) {
    let (Some(client), Some(server)) = (get(link.client), get(link.server)) else { return };
    let (name, server, device) = (client.name, server.name, device_name(link.device));
    log_of!(
        client,
        "{name}: device {} ({device}) fails: {server} has not acknowledged its reset for {CUT_OFF} s, and has no access to the memory of \
         {name} until it does. Restart {server} if it hangs",
        link.number
    );
}

/// Reports a server that does not acknowledge a client's requests, or does not answer them.
#[cold]
pub fn report_owed(link: &Link, owed: Owed) {
    let (Some(client), Some(server)) = (get(link.client), get(link.server)) else { return };
    let (name, number, device, server) = (client.name, link.number, device_name(link.device), server.name);
    match owed {
        _ if link.server_is_paused() => {
            log_of!(
                client,
                "{name} waits: requests to device {number} ({device}) are not answered, as {server} is paused. Resume {server}"
            );
        }
        Owed::Acknowledgments(_) => log_of!(
            client,
            "{name} waits: {server} runs, but has not acknowledged requests to device {number} ({device}) for {REPORTED} s. See the console of \
             {server}, and restart {server} if it hangs: it finds the requests again"
        ),
        Owed::Answers(_) => log_of!(
            client,
            "{name} waits: {server} has acknowledged requests to device {number} ({device}), but has answered none for {REPORTED} s. See the \
             console of {server}, and restart {server} unless its disk or network is just slow: it finds the requests again"
        ),
    }
}

/// Reports that a client waits for its server.
#[cold]
pub fn report(link: &Link, awaited: Awaited) {
    let (Some(client), Some(server)) = (get(link.client), get(link.server)) else { return };
    let (name, number, device, server, is_off) = (client.name, link.number, device_name(link.device), server.name, server.power.is_off());
    match awaited {
        Awaited::Reset if link.server_is_paused() => log_of!(
            client,
            "{name} waits: the reset of device {number} ({device}) is not acknowledged, as {server} is paused. Resume {server}"
        ),
        Awaited::Reset => log_of!(
            client,
            "{name} waits: {server} has not acknowledged a reset of device {number} ({device}) for {REPORTED} s. See the console of {server}, \
             and restart {server} if it hangs: after {CUT_OFF} s {server} loses its access to {name}, and the device fails"
        ),
        Awaited::Server if link.only_requests_wait() => log_of!(
            client,
            "{name} waits: requests to device {number} ({device}) have no server. {server}, which served it, {}. See the console of {server}, and \
             start {server} again",
            if is_off { "is off" } else { "has not offered it for 30 s" }
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
