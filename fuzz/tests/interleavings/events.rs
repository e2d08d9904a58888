//! Events for a server of a device, by the page that it shares with Stile (`crates/virtio/src/events.rs`).

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use stile_virtio::Event;

use super::model;

mod page {
    use loom::sync::atomic::{AtomicU32, Ordering, fence};
    use stile_virtio::Event;

    include!(concat!(env!("OUT_DIR"), "/events_page.rs"));
}

use page::EventPage;

const REQUESTS: u32 = 2;

/// A device with its client and server.
struct Device {
    page: EventPage,
    /// Requests that the client has made available.
    available: AtomicU32,
    /// Changes of STATE.
    changes: AtomicU32,
    /// Interrupts that the server has not taken.
    interrupts: AtomicU32,
}

/// The server's own record of events and state.
#[derive(Default)]
struct Server {
    acknowledged: Option<u32>,
    state: Option<u32>,
    answered: u32,
    followed: u32,
}

impl Device {
    /// As `Link::change` does, whose lock orders the calls.
    fn publish(&self, last: &mut u32, event: Event) {
        let before = *last;
        *last += 1;
        if self.page.publish(*last, event) == before {
            self.interrupts.fetch_add(1, Ordering::Release);
        }
    }

    /// As `Server::attend` of `stile-devices`, after an interrupt.
    fn attend(&self, server: &mut Server) {
        self.interrupts.swap(0, Ordering::Acquire);
        loop {
            let state = self.page.state();
            if server.state.replace(state) != Some(state) {
                server.followed = self.changes.load(Ordering::Relaxed);
            }
            let available = self.available.load(Ordering::Relaxed);
            if available != server.answered {
                server.answered = available;
                continue;
            }
            let acknowledged = self.page.acknowledge();
            if server.acknowledged.replace(acknowledged) == Some(acknowledged) {
                return;
            }
        }
    }
}

/// A client kicks, and its STATE changes, while the server goes to sleep: the server has seen all of it, or an interrupt wakes it.
#[test]
fn no_event_is_lost() {
    for last_event in [Event::Kick, Event::State] {
        model(3, move || {
            let device = Arc::new(Device {
                page: EventPage::new(),
                available: AtomicU32::new(0),
                changes: AtomicU32::new(0),
                interrupts: AtomicU32::new(0),
            });
            let client = {
                let device = Arc::clone(&device);
                thread::spawn(move || {
                    let mut last = 0;
                    for request in 1..=REQUESTS {
                        if request == REQUESTS && last_event == Event::State {
                            // Under the lock that the server's load of STATE takes.
                            device.changes.store(1, Ordering::Relaxed);
                            device.publish(&mut last, Event::State);
                        } else {
                            device.available.store(request, Ordering::Relaxed);
                            device.publish(&mut last, Event::Kick);
                        }
                    }
                })
            };
            let mut server = Server::default();
            device.attend(&mut server);
            client.join().unwrap();
            if device.interrupts.load(Ordering::Acquire) != 0 {
                device.attend(&mut server);
            }
            assert_eq!(server.answered, device.available.load(Ordering::Relaxed), "requests");
            assert_eq!(server.followed, device.changes.load(Ordering::Relaxed), "changes of STATE");
        });
    }
}
