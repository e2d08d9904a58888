//! vCPUs with direct interrupts: senders find one where it is direct, or it finds their requests (`interrupts/place.rs`).

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering, fence};
use loom::thread;

use super::pending_requests::PendingRequests;
use super::{Watched, model};

pub const MAX_CPUS: usize = 2;
const NOWHERE: u32 = u32::MAX;

pub struct Id;

impl Id {
    fn vm(&self) -> u8 {
        0
    }

    fn vcpu(&self) -> u8 {
        0
    }
}

pub struct Vcpu {
    id: Id,
    runs_on: AtomicU32,
}

impl Vcpu {
    pub fn new() -> Self {
        Self { id: Id, runs_on: AtomicU32::new(NOWHERE) }
    }
}

pub struct Cpu {
    pub index: usize,
}

struct Owner;

fn owner(_: &Vcpu) -> Owner {
    Owner
}

/// Ordered by their own fences.
mod claims {
    pub struct Late;

    impl Late {
        pub fn leave(&self, _: u64) {}
    }

    pub fn late(_: usize) -> Late {
        Late
    }
}

mod timer {
    pub fn now() -> u64 {
        0
    }
}

/// DSB orders everything.
fn dsb_ish() {
    fence(Ordering::SeqCst);
}

pub struct Place {
    cpu: AtomicU32,
}

impl Place {
    pub fn new() -> Self {
        Self { cpu: AtomicU32::new(NOWHERE) }
    }
}

include!(concat!(env!("OUT_DIR"), "/place.rs"));
include!(concat!(env!("OUT_DIR"), "/place_hold.rs"));
include!(concat!(env!("OUT_DIR"), "/place_publish.rs"));
include!(concat!(env!("OUT_DIR"), "/place_sending.rs"));
include!(concat!(env!("OUT_DIR"), "/place_confined.rs"));

/// The vCPU's CPU takes its redistributor back while another one sends to it.
#[test]
fn no_cpu_sends_to_a_vcpu_that_is_no_longer_direct() {
    model(3, || {
        let shared = Arc::new((Place::new(), Vcpu::new(), Watched::new(0)));
        let other = Arc::clone(&shared);
        let sender = thread::spawn(move || {
            let (place, _, redistributor) = &*other;
            place.hold(1, |cpu| {
                assert_eq!(cpu, 0);
                redistributor.add(1);
            })
        });
        let (place, vcpu, redistributor) = &*shared;
        let cpu = Cpu { index: 0 };
        place.publish(&cpu, vcpu);
        place.unpublish(&cpu);
        redistributor.add(1);
        let sent = sender.join().unwrap();
        assert_eq!(redistributor.get(), 1 + u32::from(sent));
    });
}

#[test]
fn a_request_to_a_vcpu_that_becomes_direct_is_taken() {
    model(3, || {
        let shared = Arc::new((Place::new(), Vcpu::new(), PendingRequests::new()));
        let other = Arc::clone(&shared);
        let sender = thread::spawn(move || {
            let (place, _, requests) = &*other;
            requests.post_sgi(1);
            let mut sent = false;
            place.hold(1, |_| sent = !requests.take().is_empty());
            sent
        });
        let (place, vcpu, requests) = &*shared;
        let cpu = Cpu { index: 0 };
        place.publish(&cpu, vcpu);
        let found = !requests.take().is_empty();
        let sent = sender.join().unwrap();
        assert!(found != sent, "the request is {}", if found { "there twice" } else { "lost" });
        place.unpublish(&cpu);
    });
}
