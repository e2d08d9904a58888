//! The state behind both register files.

use crate::events::{Event, EventPage};
use crate::features::{Features, half};
use crate::queue::{Queue, set_high, set_low};
use crate::{CONFIG_SIZE, NO_VECTOR, QUEUES, VECTORS, client, server, status};

/// Effect of an access on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// None.
    Nothing,
    /// The server must learn of an event: [`Transport::publish`].
    Event(Event),
    /// The client must be interrupted, for these causes: bits of [`server::INTERRUPT`].
    SignalClient(u32),
}

/// A device that a server offers to a client.
#[derive(Clone, Debug)]
pub struct Transport {
    pub(crate) device: u32,
    /// The server's window on the client's RAM: its address and size, and the address of the RAM.
    window: [u64; 3],
    pub(crate) status: u32,
    /// A server serves the device.
    pub(crate) online: bool,
    /// The client was reset, and the server has not acknowledged it.
    pub(crate) resetting: bool,
    /// The server reaches none of the client's memory, and counts as offline: it did not acknowledge a reset in time.
    pub(crate) cut_off: bool,
    /// The client's VM is off.
    off: bool,
    /// No server came: loads are answered without one. Not while one is online, unless it is cut off.
    pub(crate) given_up: bool,
    /// Loads of the status no longer wait, until the next reset or an answer of the server.
    pub(crate) overdue: bool,
    /// The server has left events unacknowledged, or requests unanswered, for long: the driver finds DEVICE_NEEDS_RESET.
    pub(crate) unanswered: bool,
    /// Acknowledgments of events, and answers to requests, are being checked.
    pub(crate) watched: bool,
    pub(crate) features: Features,
    pub(crate) queues: [Queue; QUEUES],
    /// MSI-X vectors of the queues, and of changes of the configuration.
    pub(crate) vectors: [u16; VECTORS],
    /// Messages that are not sent yet, because their vectors are masked or nobody could take them. A bit for each vector.
    pending: u32,
    pub(crate) client_queue: u32,
    server_queue: u32,
    pub(crate) interrupts: u32,
    /// Number of the last event.
    pub(crate) events: u32,
    /// Queues that can be kicked, a bit each: the enabled ones of a running driver.
    kickable: u32,
    generation: u32,
    config: [u8; CONFIG_SIZE],
    /// Configuration space as the server has written it.
    staged: [u8; CONFIG_SIZE],
}

impl Transport {
    /// A device of this type, which nobody serves. `base`, `size`: the server's window on the client's RAM, which the client
    /// has at `client_base`.
    pub const fn new(device: u32, base: u64, size: u64, client_base: u64) -> Self {
        Self {
            device,
            window: [base, size, client_base],
            status: 0,
            online: false,
            resetting: false,
            cut_off: false,
            off: false,
            given_up: false,
            overdue: false,
            unanswered: false,
            watched: false,
            features: Features::new(),
            queues: [Queue::ABSENT; QUEUES],
            vectors: [NO_VECTOR; VECTORS],
            pending: 0,
            client_queue: 0,
            server_queue: 0,
            interrupts: 0,
            events: 0,
            kickable: 0,
            generation: 0,
            config: [0; CONFIG_SIZE],
            staged: [0; CONFIG_SIZE],
        }
    }

    /// Loads `bytes` bytes (1, 2 or 4) for the client. Returns `None` if the load must wait for the server.
    pub fn read(&self, offset: u64, bytes: u64) -> Option<u32> {
        if let identification @ Some(_) = self.identification(offset, bytes) {
            return identification;
        }
        if self.must_wait().is_some() {
            return (offset == client::STATUS && bytes == 4 && self.overdue).then_some(self.status | status::NEEDS_RESET);
        }
        if let Some(at) = offset.checked_sub(client::CONFIG) {
            return Some(load(&self.config, at, bytes));
        }
        if bytes != 4 {
            return Some(0);
        }
        let queue = self.queues.get(self.client_queue as usize).copied().unwrap_or_default();
        Some(match offset {
            // Without VERSION_1, by which a driver's probe ends in an error.
            client::DEVICE_FEATURES if self.given_up => 0,
            client::DEVICE_FEATURES => half(self.features.offered(), self.features.offered_select),
            client::QUEUE_SIZE_MAX => queue.maximum.into(),
            client::QUEUE_READY => queue.ready.into(),
            client::STATUS if self.unanswered => self.status | status::NEEDS_RESET,
            client::STATUS => self.status,
            client::SHM_LEN..=client::SHM_BASE_HIGH if offset.is_multiple_of(4) => u32::MAX,
            client::CONFIG_GENERATION => self.generation,
            _ => 0,
        })
    }

    /// Registers that are read without a server.
    fn identification(&self, offset: u64, bytes: u64) -> Option<u32> {
        let value = match offset {
            client::MAGIC_VALUE => client::MAGIC,
            client::VERSION => client::VERSION_2,
            client::DEVICE_ID => self.device,
            client::VENDOR_ID => client::VENDOR,
            client::INTERRUPT_STATUS => self.interrupts,
            _ => return None,
        };
        (bytes == 4).then_some(value)
    }

    /// Stores for the client. Stores of other sizes than four bytes are ignored.
    #[inline]
    pub fn write(&mut self, offset: u64, bytes: u64, value: u32) -> Effect {
        if bytes != 4 {
            return Effect::Nothing;
        }
        if offset == client::QUEUE_NOTIFY {
            return self.kick(value);
        }
        match offset {
            client::INTERRUPT_ACK => self.interrupts &= !value,
            client::STATUS if value == 0 => return self.reset(),
            client::STATUS => return self.set_status(value),
            client::DEVICE_FEATURES_SEL => self.features.offered_select = value,
            client::DRIVER_FEATURES_SEL => self.features.accepted_select = value,
            client::DRIVER_FEATURES if self.status & status::FEATURES_OK == 0 => self.features.accept(value),
            client::QUEUE_SEL => self.client_queue = value,
            _ if self.status & status::DRIVER_OK == 0 => self.configure_queue(offset, value),
            _ => {}
        }
        Effect::Nothing
    }

    #[inline]
    pub(crate) fn kick(&mut self, number: u32) -> Effect {
        let is_kickable = self.kickable.checked_shr(number).is_some_and(|queues| queues & 1 != 0);
        if is_kickable { Effect::Event(Event::Kick) } else { Effect::Nothing }
    }

    /// Whether the server may access the queues.
    pub(crate) const fn is_running(&self) -> bool {
        self.status & status::DRIVER_OK != 0
    }

    /// Tells the server of an event, whether it is online or not. Returns whether it must be interrupted: by its own account, it
    /// has seen all earlier events.
    #[inline]
    pub fn publish(&mut self, page: &EventPage, event: Event) -> bool {
        let before = self.events;
        self.events = before.wrapping_add(1);
        page.publish(self.events, event) == before
    }

    /// The driver sets bits of the status. It can't clear any but by a reset.
    fn set_status(&mut self, value: u32) -> Effect {
        use status::{ACKNOWLEDGE, DRIVER, DRIVER_OK, FAILED, FEATURES_OK};
        // The server still works for the driver's previous life.
        if !self.is_quiet() {
            return Effect::Nothing;
        }
        self.status |= value & (ACKNOWLEDGE | DRIVER | FAILED);
        if value & FEATURES_OK != 0 && self.features.are_valid() && !self.given_up && !self.cut_off {
            self.status |= FEATURES_OK;
        }
        if value & DRIVER_OK != 0 && self.status & (FEATURES_OK | DRIVER_OK) == FEATURES_OK {
            self.status |= DRIVER_OK;
            // The queues are not configured any more.
            self.kickable = (0..).zip(&self.queues).fold(0, |queues, (number, queue)| queues | u32::from(queue.ready) << number);
            return Effect::Event(Event::State);
        }
        Effect::Nothing
    }

    fn configure_queue(&mut self, offset: u64, value: u32) {
        let Some(queue) = self.queues.get_mut(self.client_queue as usize) else { return };
        match offset {
            client::QUEUE_SIZE => queue.set_size(value),
            client::QUEUE_READY => queue.set_ready(value),
            client::QUEUE_DESC => set_low(&mut queue.descriptors, value),
            client::QUEUE_DRIVER => set_low(&mut queue.driver, value),
            client::QUEUE_DEVICE => set_low(&mut queue.device, value),
            offset if offset == client::QUEUE_DESC + 4 => set_high(&mut queue.descriptors, value),
            offset if offset == client::QUEUE_DRIVER + 4 => set_high(&mut queue.driver, value),
            offset if offset == client::QUEUE_DEVICE + 4 => set_high(&mut queue.device, value),
            _ => {}
        }
    }

    /// Resets the client's side, for its driver. If the queues were in use, [`Transport::is_quiet`] is false
    /// until the server has acknowledged it.
    pub fn reset(&mut self) -> Effect {
        let was_running = self.is_running();
        self.status = 0;
        (self.overdue, self.unanswered) = (false, false);
        self.kickable = 0;
        self.interrupts = 0;
        self.vectors = [NO_VECTOR; VECTORS];
        // Reset devices send no notifications (Virtio 1.2, section 2.4.1).
        self.pending = 0;
        self.client_queue = 0;
        self.features.reset();
        self.queues.iter_mut().for_each(Queue::reset);
        if was_running && self.online {
            self.resetting = true;
            return Effect::Event(Event::State);
        }
        Effect::Nothing
    }

    /// Handles power-off of the client's VM.
    pub fn client_ended(&mut self) -> Effect {
        self.off = true;
        Effect::Event(Event::State)
    }

    /// Handles reset or power-on of the client's VM.
    pub fn client_starts(&mut self) -> Effect {
        let was_off = core::mem::take(&mut self.off);
        self.given_up = false;
        let effect = self.reset();
        if was_off { Effect::Event(Event::State) } else { effect }
    }

    /// The server's VM has ended: it accesses nothing. The driver's state is kept for the next server.
    pub fn server_ended(&mut self) {
        let _ = self.set_online(false);
    }

    /// A driver that runs is told that its new server has another configuration than the one before.
    fn set_online(&mut self, online: bool) -> Effect {
        let changes = online && !self.online && self.config != self.staged;
        self.online = online;
        (self.overdue, self.unanswered, self.watched) = (false, false, false);
        if online {
            self.given_up &= self.cut_off;
        } else {
            self.resetting = false;
        }
        if !changes {
            return Effect::Nothing;
        }
        self.commit_configuration();
        self.interrupt(server::CONFIG_CHANGED)
    }

    /// Shows the client what the server has written. With another generation, by which a driver that is reading it finds
    /// out (Virtio 1.2, section 2.5.1).
    const fn commit_configuration(&mut self) {
        self.config = self.staged;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Holds messages that could not be sent, a bit each, until [`Transport::take_pending`]. Drops them if the device
    /// was reset meanwhile.
    pub fn hold(&mut self, vectors: u32) {
        if self.is_running() {
            self.pending |= vectors & ((1 << VECTORS) - 1);
        }
    }

    /// Messages that are held, a bit for each vector.
    pub const fn pending(&self) -> u32 {
        self.pending
    }

    /// Takes the messages of vectors that are not masked, a bit each: they are to be sent.
    pub const fn take_pending(&mut self, unmasked: u32) -> u32 {
        let taken = self.pending & unmasked;
        self.pending &= !taken;
        taken
    }

    /// Loads a word for the server.
    pub fn server_read(&self, offset: u64) -> u32 {
        let queue = self.queues.get(self.server_queue as usize).copied().unwrap_or_default();
        let halves = |value: u64, base: u64| half(value, ((offset - base) / 4) as u32);
        if !offset.is_multiple_of(4) {
            return 0;
        }
        match offset {
            server::MAGIC_VALUE => server::MAGIC,
            server::VERSION => server::VERSION_3,
            server::DEVICE_ID => self.device,
            server::WINDOW_BASE..server::WINDOW_SIZE => halves(self.window[0], server::WINDOW_BASE),
            server::WINDOW_SIZE..server::CLIENT_BASE => halves(self.window[1], server::WINDOW_SIZE),
            server::CLIENT_BASE..server::CONTROL => halves(self.window[2], server::CLIENT_BASE),
            server::CONTROL => self.online.into(),
            server::STATE => {
                let flag = |is_set, bit| if is_set { bit } else { 0 };
                self.status | flag(self.resetting, server::STATE_RESET) | flag(self.off, server::STATE_OFF)
            }
            server::DEVICE_FEATURES_SEL => self.features.server_select,
            server::DEVICE_FEATURES => half(self.features.offered(), self.features.server_select),
            server::DRIVER_FEATURES..server::NEEDS_RESET => halves(self.features.accepted, server::DRIVER_FEATURES),
            server::QUEUE_SEL => self.server_queue,
            server::QUEUE_SIZE_MAX => queue.maximum.into(),
            server::QUEUE_SIZE => queue.size.into(),
            server::QUEUE_READY => queue.ready.into(),
            server::QUEUE_DESC..server::QUEUE_DRIVER => halves(queue.descriptors, server::QUEUE_DESC),
            server::QUEUE_DRIVER..server::QUEUE_DEVICE => halves(queue.driver, server::QUEUE_DRIVER),
            server::QUEUE_DEVICE..0x78 => halves(queue.device, server::QUEUE_DEVICE),
            server::CONFIG.. => load(&self.staged, offset - server::CONFIG, 4),
            _ => 0,
        }
    }

    /// Stores a word for the server.
    #[inline]
    pub fn server_write(&mut self, offset: u64, value: u32) -> Effect {
        match offset {
            server::INTERRUPT => return self.interrupt(value & (server::QUEUES_MASK | server::CONFIG_CHANGED)),
            server::CONTROL => return self.set_online(value & server::CONTROL_ONLINE != 0),
            server::RESET_DONE => (self.resetting, self.overdue) = (false, false),
            server::NEEDS_RESET if self.is_running() => {
                self.status |= status::NEEDS_RESET;
                return self.interrupt(server::CONFIG_CHANGED);
            }
            server::DEVICE_FEATURES_SEL => self.features.server_select = value,
            server::DEVICE_FEATURES if !self.online => self.features.offer(value),
            server::QUEUE_SEL => self.server_queue = value,
            server::QUEUE_SIZE_MAX if !self.online => {
                if let Some(queue) = self.queues.get_mut(self.server_queue as usize) {
                    queue.set_maximum(value);
                }
            }
            server::CONFIG_COMMIT => self.commit_configuration(),
            server::CONFIG.. if offset.is_multiple_of(4) => {
                if let Some(word) = self.staged.get_mut((offset - server::CONFIG) as usize..).and_then(<[u8]>::first_chunk_mut) {
                    *word = value.to_le_bytes();
                }
            }
            _ => {}
        }
        Effect::Nothing
    }

    /// Interrupts the client for some causes.
    #[inline]
    pub(crate) fn interrupt(&mut self, causes: u32) -> Effect {
        if causes == 0 || !self.online || !self.is_running() {
            return Effect::Nothing;
        }
        if causes & server::QUEUES_MASK != 0 {
            self.interrupts |= client::USED_BUFFER;
        }
        if causes & server::CONFIG_CHANGED != 0 {
            self.interrupts |= client::CONFIG_CHANGE;
        }
        Effect::SignalClient(causes)
    }
}

/// Loads `bytes` bytes, at most four, at an offset; 0 beyond the end.
fn load(from: &[u8], at: u64, bytes: u64) -> u32 {
    let byte = |n: u64| usize::try_from(at.saturating_add(n)).ok().and_then(|at| from.get(at).copied()).unwrap_or(0);
    (0..bytes.min(4)).fold(0, |value, n| value | u32::from(byte(n)) << (8 * n))
}
