//! The end of a run, and its exit status.

use std::collections::BTreeMap;
use std::time::Duration;

use stile_wire::{Crash, CrashReason, Event, VmState, Wait};

use crate::exit;
use crate::out::Unwritable;

/// Reason of the run's end.
#[derive(Debug)]
pub enum End {
    /// The emulator ended; its exit status in words if it is a failure.
    Emulator(Option<String>),
    /// The time was up.
    Timeout(Duration),
    /// The user left.
    Left,
    /// A signal ended the run.
    Terminated,
    /// A board's serial line was closed.
    Disconnected,
    /// The consoles can't be shown any more.
    Unwritable(Unwritable),
}

/// The fate of a VM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fate {
    /// Not started yet.
    #[default]
    Waiting,
    /// It runs.
    Running,
    /// The operator paused it.
    Paused,
    /// Powered off.
    Off,
    /// It crashed.
    Crashed(Crash),
    /// Ended with a status; 0 is success.
    Exited(u32),
    /// It reset itself, and that was its end.
    Reset,
    /// The operator destroyed it.
    Destroyed,
}

impl Fate {
    /// After this change.
    const fn after(state: VmState) -> Self {
        match state {
            VmState::PoweredOff => Self::Off,
            VmState::Crashed(crash) => Self::Crashed(crash),
            VmState::Exited(status) => Self::Exited(status),
            VmState::Reset => Self::Reset,
            VmState::Started | VmState::Restarted(_) | VmState::Resumed => Self::Running,
            VmState::Paused => Self::Paused,
            VmState::Destroyed => Self::Destroyed,
        }
    }

    /// Whether the VM has ended.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running | Self::Paused)
    }
}

/// The course of the run according to Stile's messages.
#[derive(Debug, Clone, Default)]
pub struct Story {
    /// States by VM.
    pub fates: Vec<Fate>,
    /// Number of restarts, by VM index.
    pub restarts: BTreeMap<usize, u32>,
    /// Served devices for which VMs wait, by VM index.
    pub waits: BTreeMap<usize, Wait>,
    /// The CPU that panicked.
    pub panic: Option<u16>,
    /// The status of Stile's last message.
    pub end: Option<u8>,
}

impl Story {
    /// A run of `vms` VMs before their start.
    pub fn of(vms: usize) -> Self {
        Self { fates: vec![Fate::default(); vms], ..Self::default() }
    }

    /// Whether a message is of a state that was sent again: the VM is known to be in it, or it is the last one of the VM that had its
    /// number before.
    pub fn knows(&self, event: &Event) -> bool {
        let Event::Vm { vm, state } = *event else { return false };
        let vm = usize::from(vm);
        let is_counted = |count: u32| self.restarts.get(&vm) == Some(&count);
        match self.fates.get(vm) {
            Some(Fate::Waiting) => state == VmState::Destroyed,
            Some(fate) => *fate == Fate::after(state) && !matches!(state, VmState::Restarted(count) if !is_counted(count)),
            None => false,
        }
    }

    /// Processes a message, and returns the index of the VM concerned.
    pub fn tell(&mut self, event: &Event) -> Option<usize> {
        match *event {
            Event::Vm { vm, state } => {
                let vm = usize::from(vm);
                let fate = self.fates.get_mut(vm)?;
                *fate = Fate::after(state);
                match state {
                    VmState::Restarted(count) => drop(self.restarts.insert(vm, count)),
                    VmState::Destroyed => drop(self.restarts.remove(&vm)),
                    _ => {}
                }
                return Some(vm);
            }
            Event::Waits { vm, wait: Some(wait) } => drop(self.waits.insert(vm.into(), wait)),
            Event::Waits { vm, wait: None } => drop(self.waits.remove(&vm.into())),
            Event::Panic { cpu } => self.panic = Some(cpu),
            Event::End { status } => self.end = Some(status),
            _ => {}
        }
        None
    }
}

/// The result of a run with commands (`--exec`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exec {
    /// No command was given.
    None,
    /// A command has not ended.
    Unfinished,
    /// The command's status; of several, the first nonzero one.
    Status(u8),
}

impl Exec {
    /// Combines the statuses of all commands; `None` is one that has not ended.
    pub fn of(statuses: impl Iterator<Item = Option<u8>>) -> Self {
        statuses.fold(Self::None, |sum, status| match (sum, status) {
            (Self::Unfinished, _) | (_, None) => Self::Unfinished,
            (Self::None | Self::Status(0), Some(status)) => Self::Status(status),
            (failed @ Self::Status(_), Some(_)) => failed,
        })
    }
}

/// The exit status, and a message to the user in case of failure. `names` are the VMs'.
pub fn judge(end: &End, story: &Story, exec: Exec, names: &[String]) -> (u8, Option<String>) {
    let name = |vm: usize| names.get(vm).map_or("?", String::as_str);
    if let Some(cpu) = story.panic {
        return (exit::HYPERVISOR, Some(format!("the hypervisor panicked on CPU {cpu}")));
    }
    match end {
        End::Left => return (exit::LEFT, None),
        End::Terminated => return (exit::TERMINATED, Some("ended by a signal".into())),
        End::Disconnected => return (exit::EMULATOR, Some("the serial line was disconnected".into())),
        End::Unwritable(unwritable) if unwritable.reader_left() => return (exit::UNREAD, None),
        End::Unwritable(unwritable) => return (exit::FAILURE, Some(unwritable.to_string())),
        End::Timeout(limit) => {
            let resets = story.restarts.iter().map(|(&vm, &count)| format!("; {} was reset {}", name(vm), times(count)));
            let resets: String = resets.collect();
            return (exit::TIMEOUT, Some(format!("time-out: not over after {} seconds{resets}", limit.as_secs_f64())));
        }
        End::Emulator(_) => {}
    }
    let crash = story.fates.iter().enumerate().find_map(|(vm, fate)| match fate {
        Fate::Crashed(crash) => Some((vm, crash)),
        _ => None,
    });
    if let Some((vm, crash)) = crash {
        return (exit::GUEST, Some(format!("{} crashed: {}", name(vm), describe(crash))));
    }
    if let Exec::Status(status) = exec {
        return (status, None);
    }
    let failed = story.fates.iter().enumerate().find_map(|(vm, fate)| match fate {
        Fate::Exited(status) if *status != 0 => Some((vm, status)),
        _ => None,
    });
    if let Some((vm, status)) = failed {
        return (exit::GUEST, Some(format!("{} ended itself with status {status}; 0 is success", name(vm))));
    }
    match (end, story.end) {
        (End::Emulator(Some(failure)), _) => (exit::EMULATOR, Some(format!("the emulator failed: {failure}{}", remedy(failure)))),
        (_, None) => (exit::EMULATOR, Some("the emulator ended before Stile did".into())),
        (_, Some(0)) if exec == Exec::Unfinished => (exit::GUEST, Some("a VM ended without its command's status".into())),
        (_, Some(0)) => (exit::OK, None),
        (_, Some(Event::REFUSED)) => (exit::LACKING, Some("Stile can't run on this machine: see its log above".into())),
        (_, Some(_)) if story.fates.iter().all(|fate| *fate == Fate::Waiting) => {
            (exit::HYPERVISOR, Some("Stile stopped before it started a VM: its log says why".into()))
        }
        (_, Some(_)) => match story.fates.iter().position(|fate| !matches!(fate, Fate::Off | Fate::Exited(0) | Fate::Destroyed)) {
            Some(vm) if story.fates[vm] == Fate::Reset => {
                let after = story.restarts.get(&vm).map(|&count| format!(", having restarted {}", times(count)));
                (exit::GUEST, Some(format!("{} ended by a reset{}", name(vm), after.unwrap_or_default())))
            }
            Some(vm) => (exit::GUEST, Some(format!("{} did not end by its own power-off", name(vm)))),
            None => (exit::HYPERVISOR, Some("Stile stopped with a failure: its log says why".into())),
        },
    }
}

/// As [`judge`], for the Stile in the VM `outer`, which did not fail itself.
pub fn judge_inner(outer: &str, story: &Story, exec: Exec, names: &[String]) -> (u8, Option<String>) {
    match judge(&End::Emulator(None), story, exec, names) {
        // No emulator of its own can have failed: the operator turned its VM off.
        (exit::EMULATOR, Some(_)) => (exit::GUEST, Some(format!("{outer} was turned off before its VMs ended"))),
        (status, message) => (status, message.map(|message| format!("in {outer}: {message}"))),
    }
}

/// A number of times in words.
pub fn times(count: u32) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

/// Size of the vectors of AArch64, which are at address 0 until a guest sets VBAR_EL1.
const VECTORS: u64 = 0x800;

/// A crash in words.
pub fn describe(crash: &Crash) -> String {
    let reason = match crash.reason {
        CrashReason::NoDevice => format!("it accessed {:#x}, where there is neither memory nor a device", crash.address),
        CrashReason::NoSyndrome => {
            format!("it accessed a device at {:#x} with an instruction that can't be emulated", crash.address)
        }
        CrashReason::BadFetch if crash.address < VECTORS => format!(
            "it fetched an instruction from {:#x}, a vector of exceptions before it had set any: the file may not be a kernel",
            crash.address
        ),
        CrashReason::BadFetch => format!("it fetched an instruction from {:#x}, where there is no memory", crash.address),
        CrashReason::UnknownExit => "an exit unknown to Stile".into(),
        CrashReason::SystemError => "the hardware reported an error (SError)".into(),
        CrashReason::OutOfMemory => "the second stage's tables ran out of memory".into(),
        CrashReason::TripleFault => "a triple fault: a fault's handler faulted, and so did that one's handler".into(),
        CrashReason::EntryFailed => "the processor refused the VM entry; syndrome: exit reason, or VM-instruction error".into(),
        CrashReason::VmxAbort => "VMX abort: a VM exit to its hypervisor failed; syndrome: the indicator, address: the VMCS".into(),
    };
    format!("{reason} (vCPU {}, PC {:#x}, syndrome {:#x}, address {:#x})", crash.vcpu, crash.pc, crash.syndrome, crash.address)
}

/// Returns the remedy for a failure of the emulator's start, by QEMU's message: another program can take an image or a port after the
/// checks, which precede the start by minutes.
fn remedy(failure: &str) -> &'static str {
    match failure {
        _ if failure.contains("Is another process using the image") => {
            " Another machine was started with it meanwhile: end that one (`stile ps`), or use a copy"
        }
        _ if failure.contains("host forwarding rule") => ": another program has taken the port meanwhile: choose another one",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET_END: End = End::Emulator(None);

    fn story(fates: &[Fate], end: Option<u8>) -> Story {
        Story { fates: fates.to_vec(), end, ..Story::default() }
    }

    fn status(end: &End, story: &Story, exec: Exec) -> u8 {
        judge(end, story, exec, &["vm".into()]).0
    }

    fn crash() -> Crash {
        Crash { reason: CrashReason::NoDevice, vcpu: 1, pc: 0x4008_0000, syndrome: 0x9200_0000, address: 0x100 }
    }

    #[test]
    fn failures_of_the_emulator_s_start_have_remedies() {
        let says = |failure: &str| judge(&End::Emulator(Some(failure.into())), &story(&[], None), Exec::None, &["vm".into()]).1.unwrap();
        assert!(says("Is another process using the image [/tmp/web.img]?").contains("`stile ps`"));
        assert!(says("Could not set up host forwarding rule 'tcp:127.0.0.1:2222-:22'").contains("choose another one"));
        assert!(says("status 1").ends_with("status 1"));
    }

    #[test]
    fn endings_have_different_statuses() {
        let off = story(&[Fate::Off], Some(0));
        assert_eq!(status(&QUIET_END, &off, Exec::None), exit::OK);
        assert_eq!(status(&QUIET_END, &off, Exec::Status(7)), 7);
        assert_eq!(status(&QUIET_END, &off, Exec::Unfinished), exit::GUEST);
        assert_eq!(status(&QUIET_END, &story(&[Fate::Running], None), Exec::None), exit::EMULATOR);
        assert_eq!(status(&End::Emulator(Some("status 1".into())), &story(&[], None), Exec::None), exit::EMULATOR);
        assert_eq!(status(&QUIET_END, &story(&[Fate::Crashed(crash())], Some(1)), Exec::None), exit::GUEST);
        assert_eq!(status(&QUIET_END, &story(&[Fate::Crashed(crash())], Some(1)), Exec::Status(0)), exit::GUEST);
        assert_eq!(status(&End::Left, &off, Exec::None), exit::LEFT);
        assert_eq!(status(&End::Terminated, &off, Exec::None), exit::TERMINATED);
        let unwritable = |kind: std::io::ErrorKind| End::Unwritable(Unwritable(kind.into()));
        assert_eq!(status(&unwritable(std::io::ErrorKind::BrokenPipe), &off, Exec::None), exit::UNREAD);
        assert_eq!(status(&unwritable(std::io::ErrorKind::StorageFull), &off, Exec::None), exit::FAILURE);
        assert_eq!(status(&End::Timeout(Duration::from_secs(1)), &off, Exec::Status(0)), exit::TIMEOUT);
        assert_eq!(status(&QUIET_END, &story(&[Fate::Running], Some(1)), Exec::None), exit::GUEST);
        assert_eq!(status(&QUIET_END, &story(&[Fate::Waiting], Some(1)), Exec::Unfinished), exit::HYPERVISOR);
        assert_eq!(status(&QUIET_END, &story(&[Fate::Exited(0), Fate::Off], Some(0)), Exec::None), exit::OK);
        assert_eq!(status(&QUIET_END, &story(&[Fate::Off, Fate::Exited(3)], Some(1)), Exec::None), exit::GUEST);
        let panicked = Story { panic: Some(2), ..off };
        assert_eq!(status(&End::Timeout(Duration::from_secs(1)), &panicked, Exec::None), exit::HYPERVISOR);
    }

    #[test]
    fn a_stile_that_is_turned_off_from_outside_is_no_emulator_s_failure() {
        let judged = |story: &Story| judge_inner("l1", story, Exec::None, &["vm".into()]);
        let (status, message) = judged(&story(&[Fate::Running], None));
        assert_eq!((status, message.as_deref()), (exit::GUEST, Some("l1 was turned off before its VMs ended")));
        assert_eq!(judged(&story(&[Fate::Off], Some(0))), (exit::OK, None));
        let own = judge_inner("l1", &story(&[Fate::Off], Some(0)), Exec::Status(exit::EMULATOR), &[]);
        assert_eq!(own, (exit::EMULATOR, None), "the status is a command's");
        let (status, message) = judged(&story(&[Fate::Exited(3)], Some(1)));
        assert!(status == exit::GUEST && message.unwrap().starts_with("in l1: vm ended itself"));
    }

    #[test]
    fn several_commands_have_one_status() {
        assert_eq!(Exec::of([].into_iter()), Exec::None);
        assert_eq!(Exec::of([Some(0), Some(3), Some(4), Some(0)].into_iter()), Exec::Status(3));
        assert_eq!(Exec::of([Some(3), None].into_iter()), Exec::Unfinished);
    }

    #[test]
    fn a_restart_is_no_end() {
        let mut story = story(&[Fate::Waiting], None);
        for state in [VmState::Started, VmState::Restarted(1), VmState::Resumed, VmState::Restarted(2)] {
            assert_eq!(story.tell(&Event::Vm { vm: 0, state }), Some(0));
            assert_eq!(story.fates, [Fate::Running]);
        }
        let wait = Wait { server: 1, number: 2, device: 26 };
        assert_eq!(story.tell(&Event::Waits { vm: 0, wait: Some(wait) }), None);
        assert_eq!(story.waits, [(0, wait)].into());
        story.tell(&Event::Waits { vm: 0, wait: None });
        assert!(story.waits.is_empty());
        story.tell(&Event::Vm { vm: 0, state: VmState::Paused });
        assert!(story.fates == [Fate::Paused] && !story.fates[0].is_over());
        assert_eq!(story.tell(&Event::Vm { vm: 9, state: VmState::Restarted(1) }), None);
        assert_eq!(story.restarts, [(0, 2)].into());
        story.tell(&Event::Vm { vm: 0, state: VmState::Destroyed });
        assert!(story.fates == [Fate::Destroyed] && story.restarts.is_empty(), "the next VM of that number is another");
    }

    #[test]
    fn a_state_that_is_sent_again_is_known() {
        let mut story = story(&[Fate::Waiting], None);
        let event = |state| Event::Vm { vm: 0, state };
        for state in [VmState::Started, VmState::Restarted(1), VmState::Restarted(2), VmState::Paused, VmState::Exited(3)] {
            assert!(!story.knows(&event(state)), "{state:?}");
            story.tell(&event(state));
            assert!(story.knows(&event(state)), "{state:?}");
        }
        assert!(!story.knows(&event(VmState::Exited(4))) && !story.knows(&Event::LedgerEnd));
        assert!(!story.knows(&Event::Vm { vm: 9, state: VmState::Paused }));
        assert!(!story.knows(&event(VmState::Destroyed)));
        story.fates[0] = Fate::Waiting;
        assert!(story.knows(&event(VmState::Destroyed)), "a VM that is being created was not destroyed: the one before was");
    }

    #[test]
    fn resets_are_counted() {
        let said = |end: &End, story: &Story| judge(end, story, Exec::None, &["a".into(), "b".into()]).1.unwrap();
        let mut story = story(&[Fate::Waiting, Fate::Running], None);
        let timeout = End::Timeout(Duration::from_secs(30));
        assert_eq!(said(&timeout, &story), "time-out: not over after 30 seconds");
        story.tell(&Event::Vm { vm: 1, state: VmState::Restarted(1) });
        assert_eq!(said(&timeout, &story), "time-out: not over after 30 seconds; b was reset once");
        story.tell(&Event::Vm { vm: 1, state: VmState::Restarted(2) });
        assert_eq!(said(&timeout, &story), "time-out: not over after 30 seconds; b was reset 2 times");
        story.tell(&Event::Vm { vm: 1, state: VmState::Reset });
        story.tell(&Event::Vm { vm: 0, state: VmState::PoweredOff });
        story.end = Some(1);
        assert_eq!(said(&QUIET_END, &story), "b ended by a reset, having restarted 2 times");
        assert_eq!(status(&QUIET_END, &story, Exec::None), exit::GUEST);
    }

    #[test]
    fn a_file_that_is_no_kernel_is_suspected() {
        let fetch = |address| describe(&Crash { reason: CrashReason::BadFetch, address, ..crash() });
        assert!(fetch(0x200).contains("0x200, a vector of exceptions before it had set any: the file may not be a kernel"));
        assert!(fetch(0x800).contains("where there is no memory"));
    }

    #[test]
    fn a_crash_message_has_its_location() {
        assert!(describe(&crash()).contains("0x100"));
        assert!(describe(&crash()).contains("PC 0x40080000"));
        assert!(!describe(&crash()).contains("EL2"), "a PC has no such registers");
    }
}
