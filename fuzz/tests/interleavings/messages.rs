//! Messages of a served device, whose driver masks and unmasks their vector, and resets it (`served/function.rs`,
//! `served/link.rs`).

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use stile_virtio::pci::common;
use stile_virtio::{Transport, VECTORS, client, server, status};

use super::lock::TicketLock;
use super::model;

const SIGNAL: u32 = 64;

loom::lazy_static! {
    static ref SENT: AtomicU32 = AtomicU32::new(0);
}

struct Function {
    signals: [AtomicU32; VECTORS],
}

struct Link {
    client: usize,
    function: Function,
    transport: TicketLock<Transport>,
}

fn send(_client: usize, signals: impl Iterator<Item = u32>) {
    for signal in signals {
        assert_eq!(signal, SIGNAL);
        SENT.fetch_add(1, Ordering::Relaxed);
    }
}

include!(concat!(env!("OUT_DIR"), "/messages.rs"));
include!(concat!(env!("OUT_DIR"), "/held_messages.rs"));

impl Link {
    /// A device with a running driver, whose vector 0 is masked.
    fn running() -> Self {
        let mut transport = Transport::new(2, 0, 0, 0);
        let _ = transport.server_write(server::CONTROL, server::CONTROL_ONLINE);
        let _ = transport.write(client::DRIVER_FEATURES_SEL, 4, 1);
        let _ = transport.write(client::DRIVER_FEATURES, 4, 1);
        let _ = transport.write(client::STATUS, 4, status::FEATURES_OK);
        let _ = transport.write(client::STATUS, 4, status::FEATURES_OK | status::DRIVER_OK);
        let function = Function { signals: std::array::from_fn(|_| AtomicU32::new(0)) };
        Self { client: 1, function, transport: TicketLock::new(transport) }
    }

    /// As a completion by the server.
    fn complete(&self) {
        let left = self.function.signal(1, |_| false);
        assert_eq!(left, 1);
        self.hold(left);
    }
}

/// A server signals while the driver unmasks the vector: the message is sent once, by one of both.
#[test]
fn a_message_to_a_vector_that_is_unmasked_is_sent_once() {
    model(3, || {
        let link = Arc::new(Link::running());
        let server = {
            let link = Arc::clone(&link);
            thread::spawn(move || link.complete())
        };
        link.function.signals[0].store(SIGNAL, Ordering::Relaxed);
        link.send_pending();
        server.join().unwrap();
        assert_eq!(SENT.load(Ordering::Relaxed), 1, "messages");
        assert_eq!(link.transport.lock().pending(), 0, "nothing is pending");
    });
}

/// A server signals while the driver resets the device: nothing stays pending for the driver's next life.
#[test]
fn no_message_survives_a_reset() {
    model(3, || {
        let link = Arc::new(Link::running());
        let server = {
            let link = Arc::clone(&link);
            thread::spawn(move || link.complete())
        };
        let _ = link.transport.lock().pci_write(common::DEVICE_STATUS, 1, 0);
        server.join().unwrap();
        assert_eq!(link.transport.lock().pending(), 0, "a message of the life before");
        link.function.signals[0].store(SIGNAL, Ordering::Relaxed);
        link.send_pending();
        assert_eq!(SENT.load(Ordering::Relaxed), 0, "messages");
    });
}
