//! A server's touch of a block of its client's RAM on one CPU, and on another the drain of the block for the client's reset, or its release
//! by the client's balloon.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use crate::first_touch::{Block, Claim, EarlyPages, STEPS};

/// A block with its mappings, each behind the lock of its table or window.
struct State {
    block: Block,
    pages: EarlyPages,
    client: Mutex<bool>,
    window: Mutex<bool>,
}

impl State {
    /// As `Vm::touch`, in one step.
    fn fill(&self) {
        if let Claim::Fill { .. } = self.block.claim() {
            *self.client.lock().unwrap() = true;
            self.block.complete(&self.pages);
        }
    }

    /// As `Window::touch`.
    fn touch(&self) {
        self.fill();
        let mut window = self.window.lock().unwrap();
        *window |= self.block.is_writable();
    }

    /// As `Vm::give`.
    fn give(&self) {
        if self.block.begin_release() {
            *self.client.lock().unwrap() = false;
            *self.window.lock().unwrap() = false;
            self.block.end_release(&self.pages, true);
        }
    }

    /// As `Vm::drain_files`.
    fn drain(&self) {
        if self.block.drain(&self.pages) {
            *self.client.lock().unwrap() = false;
            *self.window.lock().unwrap() = false;
            self.block.release(0);
        }
    }
}

#[test]
fn a_block_that_is_drained_while_its_server_touches_it_is_mapped_where_it_is_writable() {
    loom::model(|| {
        let new = || State { block: Block::new(), pages: EarlyPages::new(), client: Mutex::new(false), window: Mutex::new(false) };
        let state = Arc::new(new());
        state.fill();
        let other = Arc::clone(&state);
        let server = thread::spawn(move || other.touch());
        state.drain();
        server.join().unwrap();
        let (client, window) = (*state.client.lock().unwrap(), *state.window.lock().unwrap());
        assert_eq!(client, state.block.is_writable(), "a writable block that is not mapped faults for ever");
        assert!(!window || state.block.is_writable(), "a server sees a block before its files are loaded again");
        assert!(matches!(state.block.claim(), Claim::Full | Claim::Fill { step: 0..STEPS, .. }), "the claim is released");
    });
}

#[test]
fn a_block_that_is_given_back_while_its_server_touches_it_is_mapped_nowhere() {
    for is_filled in [false, true] {
        loom::model(move || {
            let new = || State { block: Block::new(), pages: EarlyPages::new(), client: Mutex::new(false), window: Mutex::new(false) };
            let state = Arc::new(new());
            if is_filled {
                state.fill();
            }
            let other = Arc::clone(&state);
            let server = thread::spawn(move || other.touch());
            state.give();
            server.join().unwrap();
            let (client, window) = (*state.client.lock().unwrap(), *state.window.lock().unwrap());
            if state.block.is_given() {
                assert!(!client && !window, "memory of another VM is mapped");
            } else {
                assert!(client && window && !is_filled, "the server filled it first");
            }
        });
    }
}
