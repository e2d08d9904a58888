//! Examples of both sides' use, and properties that hold after any accesses.

use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use stile_virtio::pci::{self, common};
use stile_virtio::{Awaited, Effect, Event, EventPage, Owed, Transport, client, server, status};

const BLOCK: u32 = 2;
const KICK: Effect = Effect::Event(Event::Kick);
const STATE: Effect = Effect::Event(Event::State);
const DRIVER_OK: u32 = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK | status::DRIVER_OK;

fn transport() -> Transport {
    Transport::new(BLOCK, 0x40_0000_0000, 0x2000_0000, 0x4000_0000)
}

/// Comes online with features 0x5_0000_0123, a queue of 128 descriptors, and a first word of configuration.
fn serve(transport: &mut Transport) {
    serve_queue(transport, 0);
}

/// [`serve`] with the queue of another number.
fn serve_queue(transport: &mut Transport, queue: u32) {
    for (offset, value) in [
        (server::DEVICE_FEATURES_SEL, 0),
        (server::DEVICE_FEATURES, 0x123),
        (server::DEVICE_FEATURES_SEL, 1),
        (server::DEVICE_FEATURES, 4),
        (server::QUEUE_SEL, queue),
        (server::QUEUE_SIZE_MAX, 128),
        (server::CONFIG, 0x1122_3344),
        (server::CONTROL, server::CONTROL_ONLINE),
    ] {
        assert_eq!(transport.server_write(offset, value), Effect::Nothing);
    }
}

/// Initializes the device as drivers do (Virtio 1.2, section 3.1.1), up to DRIVER_OK. Returns that store's effect.
fn drive(transport: &mut Transport) -> Effect {
    drive_queue(transport, 0)
}

/// [`drive`] with the queue of another number.
fn drive_queue(transport: &mut Transport, queue: u32) -> Effect {
    let write = |transport: &mut Transport, offset, value| assert_eq!(transport.write(offset, 4, value), Effect::Nothing);
    for (offset, value) in [
        (client::STATUS, 0),
        (client::STATUS, status::ACKNOWLEDGE),
        (client::STATUS, status::ACKNOWLEDGE | status::DRIVER),
        (client::DRIVER_FEATURES_SEL, 0),
        (client::DRIVER_FEATURES, 0x21),
        (client::DRIVER_FEATURES_SEL, 1),
        (client::DRIVER_FEATURES, 1),
        (client::STATUS, status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK),
    ] {
        write(transport, offset, value);
    }
    assert_eq!(transport.read(client::STATUS, 4), Some(DRIVER_OK & !status::DRIVER_OK));
    for (offset, value) in [
        (client::QUEUE_SEL, queue),
        (client::QUEUE_SIZE, 64),
        (client::QUEUE_DESC, 0x4000_1000),
        (client::QUEUE_DESC + 4, 1),
        (client::QUEUE_DRIVER, 0x4000_2000),
        (client::QUEUE_DEVICE + 4, 2),
        (client::QUEUE_DEVICE, 0x4000_3000),
        (client::QUEUE_READY, 1),
    ] {
        write(transport, offset, value);
    }
    transport.write(client::STATUS, 4, DRIVER_OK)
}

fn running() -> Transport {
    let mut transport = transport();
    serve(&mut transport);
    assert_eq!(drive(&mut transport), STATE);
    transport
}

#[test]
fn a_driver_waits_for_a_server() {
    let mut transport = transport();
    for (offset, value) in [(0, client::MAGIC), (4, 2), (8, BLOCK), (0xc, client::VENDOR), (client::INTERRUPT_STATUS, 0)] {
        assert_eq!(transport.read(offset, 4), Some(value));
    }
    for offset in [client::STATUS, client::DEVICE_FEATURES, client::CONFIG, client::CONFIG_GENERATION] {
        assert_eq!(transport.read(offset, 4), None);
    }
    serve(&mut transport);
    assert_eq!(transport.read(client::STATUS, 4), Some(0));
    assert_eq!(transport.read(client::CONFIG, 4), Some(0x1122_3344));
    assert_eq!(transport.read(client::CONFIG + 1, 1), Some(0x33));
    assert_eq!(transport.read(client::CONFIG + 254, 4), Some(0));
}

#[test]
fn a_server_that_does_not_come_is_given_up() {
    let mut transport = transport();
    assert_eq!(transport.must_wait(), Some(Awaited::Server));
    assert!(transport.give_up());
    assert_eq!((transport.must_wait(), transport.give_up()), (None, false));
    for half in 0..2 {
        assert_eq!(transport.write(client::DEVICE_FEATURES_SEL, 4, half), Effect::Nothing);
        assert_eq!(transport.read(client::DEVICE_FEATURES, 4), Some(0), "not even VERSION_1");
    }
    for (offset, value) in [(client::DRIVER_FEATURES_SEL, 1), (client::DRIVER_FEATURES, 1), (client::STATUS, DRIVER_OK)] {
        assert_eq!(transport.write(offset, 4, value), Effect::Nothing);
    }
    assert_eq!(transport.read(client::STATUS, 4), Some(status::ACKNOWLEDGE | status::DRIVER), "features are refused");
    // It comes after all, and the driver is bound again.
    serve(&mut transport);
    assert_eq!(drive(&mut transport), STATE);
    // The next wait is as long.
    transport.server_ended();
    assert_eq!(transport.must_wait(), Some(Awaited::Server));
    // A client that starts anew waits anew.
    assert!(transport.give_up());
    let _ = transport.client_starts();
    assert_eq!(transport.must_wait(), Some(Awaited::Server));
}

#[test]
fn a_server_that_is_cut_off_counts_as_offline() {
    let mut transport = running();
    assert_eq!(transport.client_starts(), STATE);
    assert!(!transport.is_quiet() && !transport.give_up());
    transport.cut_off();
    assert!(transport.is_quiet() && transport.is_resetting());
    // The client goes on without the device.
    assert_eq!(transport.must_wait(), Some(Awaited::Reset));
    assert!(transport.give_up());
    assert_eq!(transport.write(client::STATUS, 4, DRIVER_OK), Effect::Nothing);
    assert_eq!(transport.read(client::STATUS, 4), Some(status::ACKNOWLEDGE | status::DRIVER), "features are refused");
    // Another reset has nothing to wait for.
    assert_eq!(transport.client_starts(), Effect::Nothing);
    assert!(transport.is_quiet());
    // The server acknowledges, but reaches nothing before it is reconnected.
    assert_eq!(transport.server_write(server::RESET_DONE, 1), Effect::Nothing);
    assert_eq!(transport.must_wait(), Some(Awaited::Server));
    assert_eq!(transport.write(client::STATUS, 4, DRIVER_OK), Effect::Nothing);
    assert_eq!(transport.server_write(server::INTERRUPT, 1), Effect::Nothing);
    // So does one that comes online anew.
    serve(&mut transport);
    assert!(transport.give_up());
    transport.reconnect();
    assert_eq!(transport.must_wait(), None);
    assert_eq!(drive(&mut transport), STATE);
    assert!(!transport.requests_wait());
    transport.server_ended();
    assert!(transport.requests_wait());
}

#[test]
fn a_reset_that_is_not_acknowledged_is_not_given_up() {
    let mut transport = running();
    assert_eq!(transport.write(client::STATUS, 4, 0), STATE);
    assert_eq!(transport.must_wait(), Some(Awaited::Reset));
    assert!(!transport.give_up());
    assert!(!transport.is_quiet());
    assert_eq!(transport.read(client::STATUS, 4), None);
}

#[test]
fn loads_of_the_status_end_during_a_wait() {
    let mut transport = running();
    assert!(!transport.end_status_wait(), "nothing waits");
    for online in [true, false] {
        // A driver's reset that is not acknowledged, and one without a server.
        let _ = transport.write(client::STATUS, 4, 0);
        if !online {
            transport.server_ended();
        }
        assert_eq!(transport.read(client::STATUS, 4), None);
        assert!(transport.end_status_wait());
        assert_eq!(transport.read(client::STATUS, 4), Some(status::NEEDS_RESET), "the reset has not ended");
        assert_eq!(transport.pci_read(0x14, 1), Some(status::NEEDS_RESET));
        assert_eq!(transport.read(client::DEVICE_FEATURES, 4), None);
        assert_eq!(transport.reset_is_overdue(), online);
        let _ = transport.server_write(server::RESET_DONE, 1);
        let _ = transport.server_write(server::CONTROL, server::CONTROL_ONLINE);
        assert_eq!(transport.read(client::STATUS, 4), Some(0));
    }
    // A running driver finds that its server is away.
    let mut transport = running();
    transport.server_ended();
    assert!(transport.end_status_wait());
    assert_eq!(transport.read(client::STATUS, 4), Some(DRIVER_OK | status::NEEDS_RESET));
    serve(&mut transport);
    assert_eq!(transport.read(client::STATUS, 4), Some(DRIVER_OK));
}

/// Returns the outstanding work of a server, with these words in the client's memory.
fn owed(transport: &mut Transport, page: &EventPage, words: &[(u64, u16)]) -> Option<Owed> {
    let requests = transport.requests()?;
    let unanswered = requests.unanswered(|at| words.iter().find(|(address, _)| *address == at).map(|(_, word)| *word));
    transport.owed(page, &requests, unanswered)
}

/// Words with the indexes of the available ring and of the used ring of [`drive`]'s queue.
fn indexes(available: u16, used: u16) -> [(u64, u16); 2] {
    [(0x4000_2002, available), (0x2_4000_3002, used)]
}

#[test]
fn requests_that_are_acknowledged_are_to_be_answered() {
    let (mut transport, page) = (running(), EventPage::new());
    assert_eq!(transport.requests(), None, "not watched");
    let _ = transport.publish(&page, Event::Kick);
    assert_eq!(transport.watch(&page), Some(Owed::Acknowledgments(0)));
    assert_eq!(owed(&mut transport, &page, &indexes(3, 1)), Some(Owed::Acknowledgments(0)));
    page.acknowledge();
    let debt = owed(&mut transport, &page, &indexes(3, 1));
    assert_eq!(debt, Some(Owed::Answers(1)));
    assert_ne!(debt.map(Owed::progress), Some(Owed::Acknowledgments(1).progress()));
    let _ = transport.set_unanswered(true);
    assert_eq!(owed(&mut transport, &page, &indexes(0, u16::MAX)), Some(Owed::Answers(0xffff)), "progress, with another index");
    // An event after the load of the rings, whose request they do not show.
    let requests = transport.requests().unwrap();
    let _ = transport.publish(&page, Event::Kick);
    page.acknowledge();
    assert_eq!(transport.owed(&page, &requests, None), Some(Owed::Acknowledgments(2)));
    assert!(!transport.is_answering());
    assert_eq!(owed(&mut transport, &page, &indexes(3, 3)), None);
    assert!(!transport.is_watched() && transport.is_answering());
    // Rings that can't be loaded; a device that has to be reset.
    let _ = transport.watch(&page);
    assert_eq!(owed(&mut transport, &page, &indexes(4, 3)[..1]), None);
    let _ = transport.watch(&page);
    let _ = transport.server_write(server::NEEDS_RESET, 1);
    assert_eq!(owed(&mut transport, &page, &indexes(4, 3)), None);
}

#[test]
fn buffers_for_input_are_no_requests() {
    // net, console: the second queue, which transmits; block, rng, fs: each queue; balloon, vsock: none.
    for (device, expected) in
        [(1, [false, true]), (2, [true; 2]), (3, [false, true]), (4, [true; 2]), (5, [false; 2]), (19, [false; 2]), (26, [true; 2])]
    {
        for (queue, is_request) in (0..).zip(expected) {
            let (mut transport, page) = (Transport::new(device, 0, 0, 0), EventPage::new());
            serve_queue(&mut transport, queue);
            assert_eq!(drive_queue(&mut transport, queue), STATE);
            let _ = transport.watch(&page);
            let debt = owed(&mut transport, &page, &indexes(1, 0));
            assert_eq!(debt, is_request.then_some(Owed::Answers(0)), "queue {queue} of device {device}");
        }
    }
}

#[test]
fn a_driver_is_told_of_unacknowledged_requests() {
    let (mut transport, page) = (transport(), EventPage::new());
    assert_eq!(transport.watch(&page), None, "no driver runs");
    serve(&mut transport);
    assert_eq!(drive(&mut transport), STATE);
    let _ = transport.publish(&page, Event::State);
    page.acknowledge();
    assert_eq!((transport.watch(&page), transport.watch(&page)), (Some(Owed::Acknowledgments(1)), None));
    assert_eq!(owed(&mut transport, &page, &[]), None);
    assert!(!transport.is_watched());
    let _ = transport.publish(&page, Event::Kick);
    assert_eq!(transport.watch(&page), Some(Owed::Acknowledgments(1)));
    assert_eq!(owed(&mut transport, &page, &[]), Some(Owed::Acknowledgments(1)));
    assert!(transport.is_answering());
    assert_eq!(transport.set_unanswered(true), Effect::SignalClient(server::CONFIG_CHANGED));
    assert_eq!(transport.set_unanswered(true), Effect::Nothing);
    assert!(!transport.is_answering());
    assert_eq!(transport.read(client::STATUS, 4), Some(DRIVER_OK | status::NEEDS_RESET));
    assert_eq!(transport.server_read(server::STATE), DRIVER_OK, "the server goes on");
    page.acknowledge();
    assert_eq!(owed(&mut transport, &page, &[]), None);
    assert_eq!(transport.read(client::STATUS, 4), Some(DRIVER_OK));
    // A server that comes back is given time.
    let _ = transport.publish(&page, Event::Kick);
    assert_eq!(transport.watch(&page), Some(Owed::Acknowledgments(2)));
    let _ = transport.set_unanswered(true);
    transport.server_ended();
    assert!(!transport.is_watched());
    serve(&mut transport);
    assert_eq!(transport.read(client::STATUS, 4), Some(DRIVER_OK));
    assert_eq!(transport.watch(&page), Some(Owed::Acknowledgments(2)));
}

#[test]
fn the_server_finds_the_queue() {
    let mut transport = running();
    assert_eq!(transport.server_read(server::STATE), DRIVER_OK);
    let words = |transport: &mut Transport, at: u64| [transport.server_read(at), transport.server_read(at + 4)];
    assert_eq!(words(&mut transport, server::DRIVER_FEATURES), [0x21, 1]);
    assert_eq!(words(&mut transport, server::QUEUE_SIZE), [64, 1]);
    assert_eq!(words(&mut transport, server::QUEUE_DESC), [0x4000_1000, 1]);
    assert_eq!(words(&mut transport, server::QUEUE_DRIVER), [0x4000_2000, 0]);
    assert_eq!(words(&mut transport, server::QUEUE_DEVICE), [0x4000_3000, 2]);
    assert_eq!(words(&mut transport, server::WINDOW_BASE), [0, 0x40]);
    assert_eq!(words(&mut transport, server::WINDOW_SIZE), [0x2000_0000, 0]);
    assert_eq!(words(&mut transport, server::CLIENT_BASE), [0x4000_0000, 0]);
    // It is the server's until the next reset.
    assert_eq!(transport.write(client::QUEUE_DESC, 4, 0), Effect::Nothing);
    assert_eq!(transport.write(client::QUEUE_READY, 4, 0), Effect::Nothing);
    assert_eq!(words(&mut transport, server::QUEUE_DESC), [0x4000_1000, 1]);
    assert_eq!(transport.server_read(server::QUEUE_READY), 1);
}

#[test]
fn kicks_are_of_enabled_queues() {
    let mut transport = running();
    assert_eq!(transport.write(client::QUEUE_NOTIFY, 4, 1), Effect::Nothing);
    assert_eq!(transport.write(client::QUEUE_NOTIFY, 4, u32::MAX), Effect::Nothing);
    assert_eq!(transport.write(client::QUEUE_NOTIFY, 4, 0), KICK);
}

#[test]
fn events_interrupt_once_until_they_are_seen() {
    let (mut transport, page) = (transport(), EventPage::new());
    assert!(transport.publish(&page, Event::State));
    assert!(!transport.publish(&page, Event::Kick));
    let (last, state) = (page.acknowledge(), page.state());
    assert_eq!(page.acknowledge(), last);
    assert!(transport.publish(&page, Event::Kick));
    assert!(!transport.publish(&page, Event::Kick));
    assert_ne!(page.acknowledge(), last);
    assert_eq!(page.state(), state, "kicks do not change the state");
    assert!(transport.publish(&page, Event::State));
    assert_ne!(page.state(), state);
}

#[test]
fn completions_signal_the_queues_vectors() {
    let mut transport = running();
    assert_eq!(transport.server_write(server::INTERRUPT, 0x7fff_ff00), Effect::Nothing);
    for (queue, vector) in [(0, 3), (1, 0), (2, 9)] {
        assert_eq!(transport.pci_write(common::QUEUE_SELECT, 2, queue), Effect::Nothing);
        assert_eq!(transport.pci_write(common::QUEUE_VECTOR, 2, vector), Effect::Nothing);
        let expected = if vector == 9 { 0xffff } else { vector };
        assert_eq!(transport.pci_read(common::QUEUE_VECTOR, 2), Some(expected));
    }
    assert_eq!(transport.pci_write(common::CONFIG_VECTOR, 2, 8), Effect::Nothing);
    assert_eq!(transport.server_write(server::INTERRUPT, 1), Effect::SignalClient(1));
    assert_eq!(transport.server_write(server::INTERRUPT, 0x8000_0007), Effect::SignalClient(0x8000_0007));
    assert_eq!(transport.vectors(1), 1 << 3);
    assert_eq!(transport.vectors(0x8000_0007), 1 << 3 | 1 | 1 << 8);
    assert_eq!(transport.pci_read(pci::ISR, 1), Some(3));
    assert_eq!(transport.pci_read(pci::ISR, 1), Some(0));
    let _ = transport.reset();
    assert_eq!(transport.vectors(0x8000_0007), 0);
}

/// As Linux does, with the registers of the PCI function alone.
#[test]
fn a_driver_of_the_pci_function() {
    let mut transport = transport();
    assert_eq!(transport.pci_read(common::DEVICE_STATUS, 1), None);
    assert_eq!(transport.pci_read(common::NUM_QUEUES, 2), Some(8));
    serve(&mut transport);
    let write = |transport: &mut Transport, offset, bytes, value| assert_eq!(transport.pci_write(offset, bytes, value), Effect::Nothing);
    write(&mut transport, common::DEVICE_STATUS, 1, 0);
    assert_eq!(transport.pci_read(common::DEVICE_STATUS, 1), Some(0));
    write(&mut transport, common::DEVICE_STATUS, 1, 3);
    // Other widths than a register's have no effect.
    write(&mut transport, common::DEVICE_STATUS, 4, 0);
    write(&mut transport, common::DEVICE_FEATURE_SELECT, 4, 1);
    assert_eq!(transport.pci_read(common::DEVICE_FEATURE, 4), Some(5));
    for (half, value) in [(0, 0x21), (1, 1)] {
        write(&mut transport, common::DRIVER_FEATURE_SELECT, 4, half);
        write(&mut transport, common::DRIVER_FEATURE, 4, value);
        assert_eq!(transport.pci_read(common::DRIVER_FEATURE, 4), Some(value));
    }
    write(&mut transport, common::DEVICE_STATUS, 1, 11);
    assert_eq!(transport.pci_read(common::DEVICE_STATUS, 1), Some(11));
    assert_eq!(transport.pci_read(common::QUEUE_SIZE, 2), Some(128));
    let places = [common::QUEUE_DESC, common::QUEUE_DRIVER, common::QUEUE_DEVICE];
    for (offset, value) in places.into_iter().zip([0x4000_1000, 0x4000_2000, 0x4000_3000]) {
        write(&mut transport, offset, 4, value);
        write(&mut transport, offset + 4, 4, 1);
        assert_eq!([transport.pci_read(offset, 4), transport.pci_read(offset + 4, 4)], [Some(value), Some(1)]);
    }
    // A queue whose size is not chosen has the maximum.
    write(&mut transport, common::QUEUE_ENABLE, 2, 1);
    assert_eq!(transport.pci_read(common::QUEUE_ENABLE, 2), Some(1));
    assert_eq!(transport.pci_write(common::DEVICE_STATUS, 1, 15), STATE);
    assert_eq!([server::QUEUE_SIZE, server::QUEUE_READY].map(|offset| transport.server_read(offset)), [128, 1]);
    let words = |transport: &mut Transport, at: u64| [transport.server_read(at), transport.server_read(at + 4)];
    assert_eq!(words(&mut transport, server::QUEUE_DEVICE), [0x4000_3000, 1]);
    assert_eq!(transport.pci_write(pci::NOTIFY, 2, 0), KICK);
    assert_eq!(transport.pci_read(pci::CONFIG, 2), Some(0x3344));
    let before = transport.pci_read(common::CONFIG_GENERATION, 1);
    let _ = transport.server_write(server::CONFIG_COMMIT, 1);
    assert_eq!(transport.pci_read(common::CONFIG_GENERATION, 1), before.map(|generation| generation + 1));
}

#[test]
fn features_must_be_offered_and_modern() {
    for (low, high, is_valid) in [(0x123, 1, true), (0, 1, true), (1, 5, true), (0, 0, false), (2, 1 | 1 << 6, false), (4, 1, false)] {
        let mut transport = transport();
        serve(&mut transport);
        for (half, value) in [(0, low), (1, high)] {
            assert_eq!(transport.write(client::DRIVER_FEATURES_SEL, 4, half), Effect::Nothing);
            assert_eq!(transport.write(client::DRIVER_FEATURES, 4, value), Effect::Nothing);
        }
        assert_eq!(transport.write(client::STATUS, 4, 0xb), Effect::Nothing);
        assert_eq!(transport.read(client::STATUS, 4), Some(if is_valid { 0xb } else { 3 }), "{low:#x}, {high:#x}");
    }
}

#[test]
fn a_reset_waits_for_the_server() {
    let mut transport = running();
    assert_eq!(transport.server_write(server::INTERRUPT, 1), Effect::SignalClient(1));
    assert_eq!(transport.write(client::STATUS, 4, 0), STATE);
    assert!(!transport.is_quiet());
    assert_eq!(transport.read(client::STATUS, 4), None);
    assert_eq!(transport.read(client::INTERRUPT_STATUS, 4), Some(0));
    assert_eq!(transport.write(client::STATUS, 4, status::ACKNOWLEDGE), Effect::Nothing);
    assert_eq!(transport.server_read(server::STATE), server::STATE_RESET);
    // Nobody waits for completions of a previous life.
    assert_eq!(transport.server_write(server::INTERRUPT, 1), Effect::Nothing);
    assert_eq!(transport.server_write(server::RESET_DONE, 0), Effect::Nothing);
    assert!(transport.is_quiet());
    assert_eq!(transport.read(client::STATUS, 4), Some(0));
    assert_eq!(transport.server_read(server::QUEUE_READY), 0);
    assert_eq!(drive(&mut transport), STATE);
}

#[test]
fn an_unused_device_is_reset_at_once() {
    let mut transport = transport();
    serve(&mut transport);
    assert_eq!(transport.write(client::STATUS, 4, 3), Effect::Nothing);
    assert_eq!(transport.reset(), Effect::Nothing);
    assert!(transport.is_quiet());
    assert_eq!(transport.read(client::STATUS, 4), Some(0));
}

#[test]
fn a_server_comes_back_to_a_running_driver() {
    let mut transport = running();
    assert_eq!(transport.write(client::QUEUE_NOTIFY, 4, 0), KICK);
    transport.server_ended();
    assert_eq!(transport.read(client::CONFIG, 4), None);
    assert_eq!(transport.server_write(server::INTERRUPT, 1), Effect::Nothing);
    serve(&mut transport);
    assert_eq!(transport.server_read(server::STATE), DRIVER_OK);
    assert_eq!(transport.server_write(server::INTERRUPT, 1), Effect::SignalClient(1));
    // A reset that a server does not live to acknowledge is complete.
    assert_eq!(transport.reset(), STATE);
    transport.server_ended();
    assert!(transport.is_quiet());
}

#[test]
fn a_server_learns_whether_its_client_is_off() {
    let mut transport = running();
    assert_eq!(transport.client_ended(), STATE);
    assert_eq!(transport.server_read(server::STATE), DRIVER_OK | server::STATE_OFF);
    // The reset of a client that comes back is acknowledged as any other.
    assert_eq!(transport.client_starts(), STATE);
    assert!(!transport.is_quiet());
    assert_eq!(transport.server_read(server::STATE), server::STATE_RESET);
    assert_eq!(transport.server_write(server::RESET_DONE, 1), Effect::Nothing);
    // One that had no driver is announced, too.
    assert_eq!(transport.client_ended(), STATE);
    assert_eq!(transport.client_starts(), STATE);
    assert_eq!(transport.server_read(server::STATE), 0);
    assert_eq!(transport.client_starts(), Effect::Nothing);
}

#[test]
fn configuration_changes_at_once() {
    let mut transport = running();
    let before = transport.read(client::CONFIG_GENERATION, 4);
    assert_eq!(transport.server_write(server::CONFIG, 7), Effect::Nothing);
    assert_eq!(transport.server_write(server::CONFIG + 252, 9), Effect::Nothing);
    assert_eq!(transport.server_write(server::CONFIG + 256, 9), Effect::Nothing);
    assert_eq!(transport.read(client::CONFIG, 4), Some(0x1122_3344));
    assert_eq!(transport.server_write(server::CONFIG_COMMIT, 1), Effect::Nothing);
    assert_eq!(transport.read(client::CONFIG, 2), Some(7));
    assert_eq!(transport.read(client::CONFIG + 252, 4), Some(9));
    assert_ne!(transport.read(client::CONFIG_GENERATION, 4), before);
}

/// A driver that read a part of the configuration before, and another one after, must find out.
#[test]
fn another_servers_configuration_has_another_generation() {
    let mut transport = running();
    let before = transport.read(client::CONFIG_GENERATION, 4);
    transport.server_ended();
    serve(&mut transport);
    assert_eq!(transport.read(client::CONFIG_GENERATION, 4), before, "it is the same");

    transport.server_ended();
    assert_eq!(transport.server_write(server::CONFIG, 5), Effect::Nothing);
    assert_eq!(transport.server_write(server::CONTROL, 1), Effect::SignalClient(server::CONFIG_CHANGED));
    assert_eq!(transport.read(client::CONFIG, 4), Some(5));
    assert_ne!(transport.read(client::CONFIG_GENERATION, 4), before);
    assert_eq!(transport.read(client::INTERRUPT_STATUS, 4), Some(client::CONFIG_CHANGE));
}

/// Messages of masked vectors are pending until they are unmasked, or the device is reset.
#[test]
fn messages_wait_for_their_vectors() {
    let mut transport = running();
    transport.hold(0x205);
    assert_eq!(transport.pending(), 5, "vectors that exist");
    assert_eq!([transport.take_pending(6), transport.take_pending(6)], [4, 0]);
    assert_eq!(transport.pending(), 1);
    assert_eq!(transport.write(client::STATUS, 4, 0), STATE);
    assert_eq!(transport.pending(), 0);
    // Of a completion that the reset overtook.
    transport.hold(1);
    assert_eq!(transport.pending(), 0);
}

#[test]
fn offers_are_constant_while_online() {
    let mut transport = running();
    for (offset, value) in [(server::DEVICE_FEATURES, u32::MAX), (server::QUEUE_SIZE_MAX, 1), (server::DEVICE_ID, 1), (server::STATE, 0)] {
        let before = transport.server_read(offset);
        assert_eq!(transport.server_write(offset, value), Effect::Nothing);
        assert_eq!(transport.server_read(offset), before);
    }
    assert_eq!(transport.server_write(server::NEEDS_RESET, 1), Effect::SignalClient(server::CONFIG_CHANGED));
    assert_eq!(transport.read(client::STATUS, 4), Some(DRIVER_OK | status::NEEDS_RESET));
}

proptest! {
    /// For any accesses of both sides: nothing panics, enabled queues have a size, and each side signals only the other one.
    #[test]
    fn any_accesses(accesses in prop::collection::vec((0..6u8, 0..0x240u64, prop_oneof![0..16u32, any::<u32>()]), 0..200)) {
        let mut transport = transport();
        serve(&mut transport);
        for (kind, offset, value) in accesses {
            match kind {
                0 => drop(transport.read(offset, [1, 2, 4][value as usize % 3])),
                4 => drop(transport.pci_read(offset, [1, 2, 4, 8][value as usize % 4])),
                5 => {
                    let effect = transport.pci_write(offset, [1, 2, 4, 8][value as usize % 4], value);
                    prop_assert!(!matches!(effect, Effect::SignalClient(_)));
                }
                1 => {
                    let effect = transport.write(offset & !3, 4, value);
                    prop_assert!(!matches!(effect, Effect::SignalClient(_)));
                }
                2 => drop(transport.server_read(offset)),
                _ => {
                    let effect = transport.server_write(offset & !3, value);
                    prop_assert!(!matches!(effect, Effect::Event(_)));
                }
            }
            for queue in 0..10 {
                prop_assert_eq!(transport.server_write(server::QUEUE_SEL, queue), Effect::Nothing);
                let (size, ready) = (transport.server_read(server::QUEUE_SIZE), transport.server_read(server::QUEUE_READY));
                prop_assert!(ready <= 1 && (ready == 0 || size != 0));
            }
        }
    }

    /// Stile's account of events is its own: whatever a server stores in the page, each event has the next number, and interrupts
    /// exactly the server that names the last one.
    #[test]
    fn any_page(stores in prop::collection::vec((prop_oneof![Just(None), (0..3u32).prop_map(Some), any::<u32>().prop_map(Some)], any::<bool>()), 0..100)) {
        let (mut transport, page) = (transport(), EventPage::new());
        // SAFETY: the page consists of words of any value. `seen` is at 0x80.
        let words = unsafe { &*(&raw const page).cast::<[AtomicU32; 33]>() };
        for (last, (store, is_state)) in (0..).zip(stores) {
            if let Some(value) = store {
                // Stile's own words, too: it never loads them.
                words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            } else {
                let written = words[0].load(Ordering::Relaxed);
                prop_assert_eq!(page.acknowledge(), written);
            }
            let seen = words[32].load(Ordering::Relaxed);
            let event = if is_state { Event::State } else { Event::Kick };
            prop_assert_eq!(transport.publish(&page, event), seen == last);
            if is_state {
                prop_assert_eq!(words[1].load(Ordering::Relaxed), last + 1);
            }
            prop_assert_eq!(words[0].load(Ordering::Relaxed), last + 1);
        }
    }
}

/// A load that must not wait gets the registers of a server that has just gone offline, and no reset that is not acknowledged.
#[test]
fn a_load_that_can_not_wait() {
    let mut transport = running();
    let _effect = transport.server_write(server::CONTROL, 0);
    assert_eq!(transport.pci_read(common::DEVICE_STATUS, 1), None);
    assert_eq!(transport.pci_read_at_once(common::DEVICE_STATUS, 1), DRIVER_OK);
    assert_eq!(transport.pci_read_at_once(pci::CONFIG, 1), 0x44);
    assert_eq!(transport.pci_read(common::DEVICE_STATUS, 1), None);
    serve(&mut transport);
    let _effect = transport.pci_write(common::DEVICE_STATUS, 1, 0);
    assert_eq!(transport.pci_read(common::DEVICE_STATUS, 1), None);
    assert_ne!(transport.pci_read_at_once(common::DEVICE_STATUS, 1) & status::NEEDS_RESET, 0);
}
