//! Messages of a served device, whose driver masks and unmasks their vector (`served/function.rs`).

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

use super::model;

struct Function {
    spis: [AtomicU32; 1],
    pending: AtomicU32,
}

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

impl Function {
    /// As `update`: publishes what the driver has written.
    fn set(&self, spi: u32) {
        self.spis[0].store(spi, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// A server signals while the driver unmasks the vector: the message is sent once, by one of both.
#[test]
fn a_message_to_a_vector_that_is_unmasked_is_sent_once() {
    const SPI: u32 = 64;
    model(3, || {
        let state = Arc::new((Function { spis: [AtomicU32::new(0)], pending: AtomicU32::new(0) }, AtomicU32::new(0)));
        let server = {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                state.0.signal(1, |spi| {
                    assert_eq!(spi, SPI);
                    state.1.fetch_add(1, Ordering::Relaxed);
                });
            })
        };
        state.0.set(SPI);
        state.0.send_pending(|_| {
            state.1.fetch_add(1, Ordering::Relaxed);
        });
        server.join().unwrap();
        assert_eq!(state.1.load(Ordering::Relaxed), 1, "messages");
        assert_eq!(state.0.pending.load(Ordering::Relaxed), 0, "nothing is pending");
    });
}
