//! An upload that Stile was asked to drop.

use std::time::{Duration, Instant};

use stile_wire::Command;

use super::upload::Upload;
use crate::control::server::ClientId;
use crate::guest::Guest;

/// Interval at which an unanswered command is sent again: the line may lose it.
const INTERVAL: Duration = Duration::from_secs(10);

/// An upload that Stile was asked to drop.
#[derive(Debug)]
pub struct Abandonment {
    /// Tag of the command that drops it.
    pub tag: u32,
    /// Tag of the upload.
    pub upload: u32,
    /// Its VM, as Stile may have created it before it was asked to drop it: client, VM, number and package.
    pub vm: Option<(ClientId, Guest, u8, Vec<u8>)>,
    /// Time at which an unanswered command is sent again.
    pub retry_at: Instant,
}

impl Abandonment {
    /// Drops the upload with the tag `upload`.
    pub fn new(tag: u32, upload: u32, now: Instant) -> Self {
        Self { tag, upload, vm: None, retry_at: now + INTERVAL }
    }

    /// Drops an upload that may be complete, so that Stile may have created its VM.
    pub fn of_upload(tag: u32, upload: Upload, now: Instant) -> Self {
        let Upload { client, guest, vm, tag: old, package, .. } = upload;
        Self { vm: Some((client, guest, vm, package)), ..Self::new(tag, old, now) }
    }

    /// The command.
    pub fn command(&self) -> Command {
        Command::Abandon { tag: self.tag, upload: self.upload }
    }

    /// Returns the command if it is time to send it again.
    pub fn retry(&mut self, now: Instant) -> Option<Command> {
        (now >= self.retry_at).then(|| {
            self.retry_at = now + INTERVAL;
            self.command()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_command_is_sent_again() {
        let now = Instant::now();
        let mut abandonment = Abandonment::new(9, 5, now);
        let command = Command::Abandon { tag: 9, upload: 5 };
        assert_eq!(abandonment.command(), command);
        assert_eq!(abandonment.retry(now), None);
        assert_eq!(abandonment.retry(now + INTERVAL), Some(command));
        assert_eq!(abandonment.retry(now + INTERVAL), None);
        assert_eq!(abandonment.retry(now + 2 * INTERVAL), Some(command));
    }
}
