//! Sends the package of a VM to Stile, with flow control and retransmission.

use std::time::{Duration, Instant};

use stile_blob::Checksum;
use stile_wire::{Command, Piece};

use super::Guest;
use crate::control::server::ClientId;

/// Maximum number of unacknowledged bytes: Stile acknowledges every 4 KiB.
const WINDOW: u32 = 8 << 10;

/// Minimum time without a report after which pieces are sent again. The actual time is twice that which the last report took,
/// and doubles at each time-out.
const LIMIT: Duration = Duration::from_secs(2);

/// Maximum time without a report after which pieces are sent again.
const MAX_LIMIT: Duration = Duration::from_secs(60);

/// A package on its way.
#[derive(Debug)]
pub struct Upload {
    /// The client that asked for it.
    pub client: ClientId,
    /// The VM.
    pub guest: Guest,
    /// Its number.
    pub vm: u8,
    /// Tag of the upload's commands.
    pub tag: u32,
    /// The package.
    pub package: Vec<u8>,
    crc: u32,
    /// Bytes that Stile has, and bytes that were sent.
    arrived: u32,
    sent: u32,
    /// Time of the last report, and the time allowed for the next.
    reported: Instant,
    limit: Duration,
    /// Pieces were sent again since the last report: the next one may be about either copy, so its time says nothing.
    is_repeated: bool,
    /// Stile has allocated memory for the package.
    has_room: bool,
    /// Bytes of the VM's RAM.
    memory: u64,
    /// Maximum number of reports without progress that answer pieces sent twice, and do not mean a lost one.
    duplicates: usize,
    /// Time at which an unanswered command is sent again.
    pub retry_at: Instant,
}

impl Upload {
    /// Starts an upload. Returns it with its first command, which makes Stile allocate memory for the package. `memory`:
    /// bytes of the VM's RAM.
    pub fn begin(client: ClientId, guest: Guest, memory: u64, vm: u8, tag: u32, package: Vec<u8>, now: Instant) -> (Self, Command) {
        let mut checksum = Checksum::new();
        checksum.update(&package);
        let crc = checksum.finish();
        let (reported, limit, retry_at) = (now, LIMIT, now + LIMIT);
        let (arrived, sent, is_repeated, has_room, duplicates) = (0, 0, false, false, 0);
        let upload = Self {
            client,
            guest,
            vm,
            tag,
            package,
            crc,
            arrived,
            sent,
            reported,
            limit,
            is_repeated,
            has_room,
            memory,
            duplicates,
            retry_at,
        };
        let first = upload.first();
        (upload, first)
    }

    /// Returns the command that makes Stile allocate memory for the package.
    fn first(&self) -> Command {
        Command::Upload { tag: self.tag, vm: self.vm, size: self.package.len() as u32, memory: self.memory }
    }

    /// Returns the number of bytes that Stile has, and that of all.
    pub fn progress(&self) -> (u64, u64) {
        (self.arrived.into(), self.package.len() as u64)
    }

    /// Handles Stile's report that it has the first `next` bytes. Returns the commands to send next.
    pub fn arrived(&mut self, next: u32, now: Instant) -> Vec<Command> {
        let next = next.min(self.package.len() as u32);
        let is_whole = self.arrived == self.package.len() as u32;
        if next <= self.arrived && self.has_room && !is_whole {
            if let Some(rest) = self.duplicates.checked_sub(1) {
                self.duplicates = rest;
                return Vec::new();
            }
            // A piece came out of order: one before it was lost.
            return self.repeat(now);
        }
        if !self.is_repeated {
            self.limit = (2 * now.saturating_duration_since(self.reported)).clamp(LIMIT, MAX_LIMIT);
        }
        (self.is_repeated, self.has_room) = (false, true);
        self.arrived = self.arrived.max(next);
        self.sent = self.sent.max(self.arrived);
        self.reported = now;
        self.retry_at = now + self.limit;
        self.next_commands()
    }

    /// Returns the commands to send again; none before [`retry_at`](Self::retry_at).
    pub fn retry(&mut self, now: Instant) -> Vec<Command> {
        if now < self.retry_at {
            return Vec::new();
        }
        self.limit = (2 * self.limit).min(MAX_LIMIT);
        self.repeat(now)
    }

    /// Returns the commands that Stile has not reported, to be sent again.
    fn repeat(&mut self, now: Instant) -> Vec<Command> {
        (self.is_repeated, self.retry_at) = (true, now + self.limit);
        if !self.has_room {
            return vec![self.first()];
        }
        self.sent = self.arrived;
        let commands = self.next_commands();
        self.duplicates = commands.len();
        commands
    }

    /// Returns the pieces that the window has room for; once Stile has all, the command that creates the VM.
    fn next_commands(&mut self) -> Vec<Command> {
        let (tag, size) = (self.tag, self.package.len() as u32);
        if self.arrived == size {
            // Each of these commands makes Stile create a bounded piece of the VM, and report again.
            return vec![Command::Create { tag, crc: self.crc }];
        }
        let mut commands = Vec::new();
        while self.sent < size && self.sent - self.arrived < WINDOW {
            let rest = &self.package[self.sent as usize..];
            let piece = Piece::new(rest);
            commands.push(Command::UploadData { tag, offset: self.sent, piece });
            self.sent += piece.bytes().len() as u32;
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    /// Returns the offsets of pieces, and whether the commands create the VM.
    fn offsets(commands: &[Command]) -> (Vec<u32>, bool) {
        let pieces = commands.iter().filter_map(|command| match command {
            Command::UploadData { offset, .. } => Some(*offset),
            _ => None,
        });
        (pieces.collect(), matches!(commands, [Command::Create { .. }]))
    }

    #[test]
    fn a_package_is_sent_in_a_window_and_again_if_it_is_lost() {
        let (size, piece) = (20_000, Piece::MOST as u32);
        let now = Instant::now();
        let guest = Guest { name: "late".into(), system: None, budget: Budget::default(), inner: Vec::new() };
        let (mut upload, first) = Upload::begin(7, guest, 64 << 20, 2, 5, vec![1; size], now);
        assert_eq!(first, Command::Upload { tag: 5, vm: 2, size: size as u32, memory: 64 << 20 });
        let (sent, made) = offsets(&upload.arrived(0, now));
        assert!(
            !made
                && sent.len() as u32 == WINDOW.div_ceil(piece)
                && sent.iter().step_by(1).eq(&(0..).step_by(piece as usize).take(sent.len()).collect::<Vec<_>>())
        );
        // The second half of the window follows the first.
        let (more, _) = offsets(&upload.arrived(10 * piece, now));
        assert_eq!(more.first(), Some(&(sent.len() as u32 * piece)));
        assert!(upload.retry(now).is_empty(), "Stile is not late");
        let (again, _) = offsets(&upload.retry(now + LIMIT));
        assert_eq!(again.first(), Some(&(10 * piece)));
        let (mut all, mut made) = (again, false);
        while let Some(last) = all.last().copied().filter(|_| !made) {
            let next = (last + piece).min(size as u32);
            (all, made) = offsets(&upload.arrived(next, now));
        }
        assert!(made && upload.progress() == (20_000, 20_000));
    }

    #[test]
    fn a_slow_machine_is_given_more_time() {
        let now = Instant::now();
        let guest = Guest { name: "late".into(), system: None, budget: Budget::default(), inner: Vec::new() };
        let (mut upload, _) = Upload::begin(7, guest, 64 << 20, 2, 5, vec![1; 20_000], now);
        let late = now + 3 * LIMIT;
        upload.arrived(4_096, late);
        assert!(upload.retry(late + 5 * LIMIT).is_empty(), "a report took three times as long");
        assert!(!upload.retry(late + 6 * LIMIT).is_empty());
        // It may be about the pieces that were sent first.
        upload.arrived(8_192, late + 8 * LIMIT);
        assert_eq!(upload.retry_at, late + 20 * LIMIT);
        upload.arrived(12_288, late + 1_000 * LIMIT);
        assert_eq!(upload.retry_at, late + 1_000 * LIMIT + MAX_LIMIT);
    }

    /// A line that loses one piece in 16, and no report. A time-out is needed only when no report follows a lost piece.
    #[test]
    fn lost_pieces_are_sent_again_at_once() {
        let mut now = Instant::now();
        let size = 100_000_u32;
        let guest = Guest { name: "late".into(), system: None, budget: Budget::default(), inner: Vec::new() };
        let (mut upload, first) = Upload::begin(7, guest, 64 << 20, 2, 5, vec![1; size as usize], now);
        assert_eq!(upload.retry(now + LIMIT), [first], "the first command was lost");
        let (mut received, mut sent, mut timeouts, mut random) = (0, 0, 0, 7_u32);
        let mut line = std::collections::VecDeque::from(upload.arrived(0, now));
        while received < size {
            let Some(command) = line.pop_front() else {
                timeouts += 1;
                now += MAX_LIMIT;
                line.extend(upload.retry(now));
                continue;
            };
            let Command::UploadData { offset, piece, .. } = command else { panic!("{command:?}") };
            sent += 1;
            random = random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            // One in 16.
            if random >> 16 & 15 == 0 {
                continue;
            }
            let before = received;
            if offset == received {
                received += piece.bytes().len() as u32;
            }
            if offset != before || received == size || received >> 12 != before >> 12 {
                line.extend(upload.arrived(received, now));
            }
        }
        let least = size as usize / Piece::MOST;
        assert!(timeouts <= 4 && sent < 4 * least, "{timeouts} time-outs, {sent} pieces sent instead of {least}");
        assert_eq!(upload.progress(), (size.into(), size.into()));
    }
}
