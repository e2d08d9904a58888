//! Accesses of a driver and of a server to a virtio transport.

use std::collections::BTreeMap;

use stile_virtio::{Effect, Event, Transport, client, server};

use crate::input::Input;
use crate::marks::reach;
use crate::target::Target;

/// Any accesses of both sides, compared with a plain model: words by name, and the rules of the specification.
pub const VIRTIO: Target = Target {
    name: "virtio",
    run: accesses,
    seeds,
    mutations: 4000,
    marks: &[
        "waits",
        "driver ok",
        "kick",
        "completion",
        "reset",
        "quiet",
        "refused features",
        "comes back",
        "vector",
        "given up",
        "overdue",
        "unanswered",
    ],
};

const WINDOW: [u64; 3] = [0x40_0000_0000, 0x1_2345_6000, 0x4000_0000];
const UNSUPPORTED: u64 = 0x3e0_0000_0000;
const VERSION_1: u64 = 1 << 32;

/// The specification, without any attempt at efficiency. Per queue: maximum, size, ready, and six halves of addresses.
#[derive(Default)]
struct Plain {
    status: u32,
    online: bool,
    resetting: bool,
    cut_off: bool,
    off: bool,
    given_up: bool,
    overdue: bool,
    unanswered: bool,
    offered: u64,
    accepted: u64,
    selects: BTreeMap<&'static str, u32>,
    queues: BTreeMap<(u32, &'static str), u32>,
    interrupts: u32,
    generation: u32,
    staged: BTreeMap<u64, u8>,
    config: BTreeMap<u64, u8>,
}

const ADDRESSES: [(u64, u64, &str); 6] = [
    (0x80, 0x60, "descriptors, low"),
    (0x84, 0x64, "descriptors, high"),
    (0x90, 0x68, "driver, low"),
    (0x94, 0x6c, "driver, high"),
    (0xa0, 0x70, "device, low"),
    (0xa4, 0x74, "device, high"),
];

fn half(value: u64, half: u32) -> u32 {
    value.checked_shr(half.saturating_mul(32)).unwrap_or(0) as u32
}

fn set_half(value: u64, half: u32, to: u32) -> u64 {
    match half {
        0 | 1 => value & !(0xffff_ffff << (32 * half)) | u64::from(to) << (32 * half),
        _ => value,
    }
}

impl Plain {
    fn new() -> Self {
        Self { offered: VERSION_1, ..Self::default() }
    }

    fn select(&self, name: &'static str) -> u32 {
        self.selects.get(name).copied().unwrap_or(0)
    }

    fn queue(&self, select: &'static str, name: &'static str) -> u32 {
        self.queues.get(&(self.select(select), name)).copied().unwrap_or(0)
    }

    fn waits(&self) -> bool {
        !self.given_up && (self.resetting || !self.online || self.cut_off)
    }

    fn read(&self, offset: u64, bytes: u64) -> Option<u32> {
        let constant = [(0, 0x7472_6976), (4, 2), (8, 2), (0xc, 0x4c49_5453), (0x60, self.interrupts)];
        if let (4, Some((_, value))) = (bytes, constant.into_iter().find(|(at, _)| *at == offset)) {
            return Some(value);
        }
        if self.waits() {
            return (self.overdue && offset == 0x70 && bytes == 4).then_some(self.status | 0x40);
        }
        let value = match offset {
            0x100.. => return Some((0..bytes).map(|n| u32::from(*self.config.get(&(offset + n)).unwrap_or(&0)) << (8 * n)).sum()),
            _ if bytes != 4 => 0,
            0x10 if self.given_up => 0,
            0x10 => half(self.offered, self.select("offered")),
            0x34 => self.queue("client", "maximum"),
            0x44 => self.queue("client", "ready"),
            0x70 => self.status | u32::from(self.unanswered) << 6,
            0xb0 | 0xb4 | 0xb8 | 0xbc => u32::MAX,
            0xfc => self.generation,
            _ => 0,
        };
        Some(value)
    }

    fn reset(&mut self) -> Effect {
        let was_running = self.status & 4 != 0;
        (self.status, self.interrupts, self.accepted) = (0, 0, 0);
        (self.overdue, self.unanswered) = (false, false);
        self.selects.retain(|name, _| name.starts_with("server"));
        self.queues.retain(|(_, name), _| *name == "maximum");
        if was_running && self.online {
            reach("reset");
            self.resetting = true;
            return Effect::Event(Event::State);
        }
        Effect::Nothing
    }

    fn write(&mut self, offset: u64, value: u32) -> Effect {
        match offset {
            0x14 => drop(self.selects.insert("offered", value)),
            0x20 if self.status & 8 == 0 => self.accepted = set_half(self.accepted, self.select("accepted"), value),
            0x24 => drop(self.selects.insert("accepted", value)),
            0x30 => drop(self.selects.insert("client", value)),
            0x50 if self.status & 4 != 0 && self.queues.get(&(value, "ready")) == Some(&1) => {
                reach("kick");
                return Effect::Event(Event::Kick);
            }
            0x64 => self.interrupts &= !value,
            0x70 if value == 0 => return self.reset(),
            0x70 if !self.resetting || self.cut_off => {
                self.status |= value & 0x83;
                let is_valid = self.accepted & !self.offered == 0 && self.accepted & VERSION_1 != 0 && !self.given_up && !self.cut_off;
                if value & 8 != 0 && is_valid {
                    self.status |= 8;
                } else if value & 8 != 0 {
                    reach("refused features");
                }
                if value & 4 != 0 && self.status & 0xc == 8 {
                    reach("driver ok");
                    self.status |= 4;
                    return Effect::Event(Event::State);
                }
            }
            _ if self.status & 4 == 0 && self.select("client") < 8 => {
                let queue = self.select("client");
                let (maximum, size) = (self.queue("client", "maximum"), self.queue("client", "size"));
                let is_ready = self.queue("client", "ready") == 1;
                let address = ADDRESSES.iter().find(|(at, ..)| *at == offset);
                match offset {
                    0x38 if value != 0 && value <= maximum && !is_ready => drop(self.queues.insert((queue, "size"), value)),
                    0x44 => drop(self.queues.insert((queue, "ready"), u32::from(value % 2 == 1 && size != 0))),
                    _ => address.into_iter().for_each(|(_, _, name)| {
                        self.queues.insert((queue, name), value);
                    }),
                }
            }
            _ => {}
        }
        Effect::Nothing
    }

    fn server_read(&mut self, offset: u64) -> u32 {
        let address = ADDRESSES.iter().find(|(_, at, _)| *at == offset).map(|(.., name)| self.queue("server", name));
        match offset {
            0 => 0x7653_7453,
            4 => 3,
            8 => 2,
            0x10 | 0x14 | 0x18 | 0x1c | 0x20 | 0x24 => half(WINDOW[(offset as usize - 0x10) / 8], u32::from(!offset.is_multiple_of(8))),
            0x28 => self.online.into(),
            0x2c => self.status | u32::from(self.resetting) << 31 | u32::from(self.off) << 30,
            0x38 => self.select("server's half"),
            0x3c => half(self.offered, self.select("server's half")),
            0x40 => half(self.accepted, 0),
            0x44 => half(self.accepted, 1),
            0x50 => self.select("server"),
            0x54 => self.queue("server", "maximum"),
            0x58 => self.queue("server", "size"),
            0x5c => self.queue("server", "ready"),
            0x100.. if offset.is_multiple_of(4) => {
                (0..4).map(|n| u32::from(*self.staged.get(&(offset + n)).unwrap_or(&0)) << (8 * n)).sum()
            }
            _ => address.unwrap_or(0),
        }
    }

    fn interrupt(&mut self, causes: u32) -> Effect {
        if !self.online || self.status & 4 == 0 || causes == 0 {
            return Effect::Nothing;
        }
        reach("completion");
        self.interrupts |= u32::from(causes & 0xff != 0) | causes >> 31 << 1;
        Effect::SignalClient(causes)
    }

    /// The number of the common configuration's register in `read` and `write`, and its width.
    fn common(offset: u64) -> Option<(u64, u64)> {
        let pairs = [
            (0x00, 0x14, 4),
            (0x04, 0x10, 4),
            (0x08, 0x24, 4),
            (0x0c, 0x20, 4),
            (0x14, 0x70, 1),
            (0x15, 0xfc, 1),
            (0x16, 0x30, 2),
            (0x18, 0x38, 2),
            (0x1c, 0x44, 2),
        ];
        let queue = [0x20, 0x24, 0x28, 0x2c, 0x30, 0x34].into_iter().zip(ADDRESSES).map(|(at, (register, ..))| (at, register, 4));
        pairs.into_iter().chain(queue).find(|(at, ..)| *at == offset).map(|(_, register, width)| (register, width))
    }

    fn pci_read(&mut self, offset: u64, bytes: u64) -> Option<u32> {
        let vector = |plain: &Self, queue: u32| plain.queues.get(&(queue, "vector")).copied().unwrap_or(0xffff);
        match (offset, bytes) {
            (0x40, _) => return Some(std::mem::take(&mut self.interrupts)),
            (0x100..0x200, _) => return self.read(offset, bytes),
            (0x12, 2) => return Some(8),
            (0x10, 2) => return Some(vector(self, 8)),
            (0x1a, 2) => {
                let queue = self.select("client");
                return Some(if queue < 8 { vector(self, queue) } else { 0xffff });
            }
            _ => {}
        }
        let Some((register, _)) = Self::common(offset).filter(|(_, width)| *width == bytes) else { return Some(0) };
        let address = ADDRESSES.iter().find(|(at, ..)| *at == register);
        match register {
            0x14 => Some(self.select("offered")),
            0x24 => Some(self.select("accepted")),
            0x20 => Some(half(self.accepted, self.select("accepted"))),
            0x30 => Some(self.select("client")),
            0x38 if self.queue("client", "size") != 0 => Some(self.queue("client", "size")),
            0x38 => self.read(0x34, 4),
            0xfc => Some(self.read(0xfc, 4)? & 0xff),
            _ => address.map_or_else(|| self.read(register, 4), |(_, _, name)| Some(self.queue("client", name))),
        }
    }

    fn pci_write(&mut self, offset: u64, bytes: u64, value: u32) -> Effect {
        let chosen = if value < 9 { value } else { 0xffff };
        match (offset, bytes) {
            (0x80, _) => return self.write(0x50, value & 0xffff),
            (0x10, 2) => drop(self.queues.insert((8, "vector"), chosen)),
            (0x1a, 2) if self.select("client") < 8 => {
                reach("vector");
                let _ = self.queues.insert((self.select("client"), "vector"), chosen);
            }
            _ => {}
        }
        let Some((register, _)) = Self::common(offset).filter(|(_, width)| *width == bytes) else { return Effect::Nothing };
        if matches!(register, 0x10 | 0xfc) {
            return Effect::Nothing;
        }
        let is_queue = self.select("client") < 8 && self.status & 4 == 0;
        if register == 0x44 && is_queue && self.queue("client", "size") == 0 {
            let maximum = self.queue("client", "maximum");
            self.queues.insert((self.select("client"), "size"), maximum);
        }
        self.write(register, value)
    }

    fn server_write(&mut self, offset: u64, value: u32) -> Effect {
        match offset {
            0x28 => {
                let is_new = value & 1 != 0 && !self.online;
                self.online = value & 1 != 0;
                (self.overdue, self.unanswered) = (false, false);
                self.resetting &= self.online;
                self.given_up &= !self.online || self.cut_off;
                if is_new && self.status & 4 != 0 {
                    reach("comes back");
                }
                let byte = |config: &BTreeMap<u64, u8>, at| config.get(&at).copied().unwrap_or(0);
                if is_new && (0x100..0x200).any(|at| byte(&self.config, at) != byte(&self.staged, at)) {
                    self.config = self.staged.clone();
                    self.generation = self.generation.wrapping_add(1);
                    return self.interrupt(1 << 31);
                }
            }
            0x30 => {
                if self.resetting {
                    reach("quiet");
                }
                (self.resetting, self.overdue) = (false, false);
            }
            0x34 => return self.interrupt(value & 0x8000_00ff),
            0x38 => drop(self.selects.insert("server's half", value)),
            0x3c if !self.online => {
                self.offered = set_half(self.offered, self.select("server's half"), value) & !UNSUPPORTED | VERSION_1;
            }
            0x48 if self.status & 4 != 0 => {
                self.status |= 0x40;
                return self.interrupt(1 << 31);
            }
            0x50 => drop(self.selects.insert("server", value)),
            0x54 if !self.online && value <= 32768 && self.select("server") < 8 => {
                let _ = self.queues.insert((self.select("server"), "maximum"), value);
            }
            0x84 => {
                self.config = self.staged.clone();
                self.generation = self.generation.wrapping_add(1);
            }
            0x100..0x200 if offset.is_multiple_of(4) => {
                (offset..).zip(value.to_le_bytes()).for_each(|(at, byte)| {
                    self.staged.insert(at, byte);
                });
            }
            _ => {}
        }
        Effect::Nothing
    }
}

fn accesses(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut transport, mut plain) = (Transport::new(2, WINDOW[0], WINDOW[1], WINDOW[2]), Plain::new());
    while !input.is_empty() {
        let kind = input.byte();
        let offset = match input.byte() {
            word @ 0..0x80 => u64::from(word) * 4,
            byte @ 0x80..0xc0 => u64::from(byte - 0x80),
            other => u64::from(other) * 0x11,
        };
        let bytes = if kind & 0x80 != 0 { Plain::common(offset).map_or(2, |(_, width)| width) } else { 0 };
        match kind % 8 {
            0 | 1 if bytes != 0 => {
                let bytes = input.pick(&[bytes, bytes, 2, 4]);
                assert_eq!(transport.pci_read(offset, bytes), plain.pci_read(offset, bytes), "{bytes} bytes of the BAR at {offset:#x}");
            }
            2 | 3 if bytes != 0 => {
                let value = input.value() as u32;
                assert_eq!(
                    transport.pci_write(offset, bytes, value),
                    plain.pci_write(offset, bytes, value),
                    "{value:#x} to BAR's {offset:#x}"
                );
            }
            0 | 1 => {
                let bytes = input.pick(&[4, 4, 2, 1]);
                let read = transport.read(offset, bytes);
                if read.is_none() {
                    reach("waits");
                }
                assert_eq!(read, plain.read(offset, bytes), "{bytes} bytes at {offset:#x}");
            }
            2 | 3 => {
                let value = input.value() as u32;
                assert_eq!(transport.write(offset, 4, value), plain.write(offset, value), "{value:#x} to {offset:#x}");
            }
            4 => assert_eq!(transport.server_read(offset), plain.server_read(offset), "server's {offset:#x}"),
            5 | 6 => {
                let value = input.value() as u32;
                assert_eq!(
                    transport.server_write(offset, value),
                    plain.server_write(offset, value),
                    "{value:#x} to the server's {offset:#x}"
                );
            }
            _ if kind & 24 == 24 => {
                plain.off = true;
                assert_eq!(transport.client_ended(), Effect::Event(Event::State));
            }
            _ if kind & 8 != 0 => {
                let was_off = std::mem::take(&mut plain.off);
                plain.given_up = false;
                let expected = match plain.reset() {
                    Effect::Nothing if was_off => {
                        reach("on again");
                        Effect::Event(Event::State)
                    }
                    effect => effect,
                };
                assert_eq!(transport.client_starts(), expected);
            }
            // As Stile does after the reset of a client's VM, and after that reset's acknowledgment.
            _ if kind & 0x70 == 0x70 && plain.resetting => {
                reach("cut off");
                plain.cut_off = true;
                transport.cut_off();
            }
            _ if kind & 0x70 == 0x70 => {
                if plain.cut_off {
                    reach("reconnected");
                    (plain.cut_off, plain.given_up, plain.overdue) = (false, false, false);
                }
                transport.reconnect();
            }
            _ if kind & 16 != 0 => {
                let is_given_up = (!plain.online || plain.cut_off) && !plain.given_up;
                assert_eq!(transport.give_up(), is_given_up);
                if is_given_up {
                    reach("given up");
                }
                plain.given_up |= is_given_up;
            }
            _ if kind & 0x60 == 0x60 => {
                if plain.waits() {
                    reach("overdue");
                }
                assert_eq!(transport.end_status_wait(), plain.waits());
                plain.overdue |= plain.waits();
            }
            _ if kind & 0x60 == 0x40 => {
                let is_new = !std::mem::replace(&mut plain.unanswered, true);
                if is_new && plain.status & 4 != 0 {
                    reach("unanswered");
                }
                let expected = if is_new { plain.interrupt(1 << 31) } else { Effect::Nothing };
                assert_eq!(transport.set_unanswered(true), expected);
            }
            _ => {
                transport.server_ended();
                (plain.online, plain.resetting) = (false, false);
                (plain.overdue, plain.unanswered) = (false, false);
            }
        }
        assert_eq!(transport.is_quiet(), !plain.resetting || plain.cut_off);
        let vector = |bit: u32| plain.queues.get(&(bit, "vector")).copied().filter(|&vector| vector < 9).map_or(0, |vector| 1 << vector);
        assert_eq!(transport.vectors(0x8000_00ff), (0..9).fold(0, |vectors, bit| vectors | vector(bit)));
    }
}

/// A server comes online; a driver starts, kicks and is reset; another server comes.
fn seeds() -> Vec<Vec<u8>> {
    let access = |kind: u8, offset: u64, value: u8| [kind, (offset / 4) as u8, 130, value];
    let serve = [(server::QUEUE_SIZE_MAX, 8), (server::CONFIG, 5), (server::CONTROL, 1)].map(|(at, value)| access(5, at, value));
    let start = [(client::DRIVER_FEATURES_SEL, 1), (client::DRIVER_FEATURES, 1), (client::STATUS, 11), (client::QUEUE_SIZE, 4)];
    let start =
        start.into_iter().chain([(client::QUEUE_DESC, 64), (client::QUEUE_READY, 1), (client::STATUS, 15), (client::QUEUE_NOTIFY, 0)]);
    let start = start.map(|(at, value)| access(2, at, value));
    let status = [0, (client::STATUS / 4) as u8, 0];
    let running: Vec<u8> = serve.into_iter().chain(start).flatten().collect();
    let completes = access(5, server::INTERRUPT, 1);
    let reset = [&access(2, client::STATUS, 0)[..], &status, &access(5, server::RESET_DONE, 0), &status].concat();
    let returns = [&[7, 0][..], &status, &access(5, server::CONTROL, 1), &status].concat();
    let refused = [access(2, client::DRIVER_FEATURES, 1), access(2, client::STATUS, 11)].concat();
    // Through the PCI function's registers, with a vector for the queue.
    let pci = |kind: u8, offset: u8, value: u8| [0x80 + kind, 0x80 + offset, 130, value];
    let driver = [(0x08, 1), (0x0c, 1), (0x14, 11), (0x1a, 3), (0x20, 64), (0x1c, 1), (0x14, 15)];
    let driver: Vec<u8> = driver.into_iter().flat_map(|(at, value)| pci(2, at, value)).collect();
    let served = serve.concat();
    vec![
        [&served[..], &driver, &completes, &[0x80, 0x94, 0]].concat(),
        [&running[..], &completes, &reset].concat(),
        [&running[..], &returns, &completes].concat(),
        [&status[..], &serve.concat(), &refused].concat(),
        [&running[..], &[0x47, 0], &status, &access(2, client::STATUS, 0), &status, &[0x67, 0], &status, &completes].concat(),
        [&status[..], &[0x17, 0], &status, &refused, &status, &served, &refused].concat(),
    ]
}
