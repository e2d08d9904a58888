//! State of a PC's devices. Fields are registers unless stated otherwise; times are relative to that of the snapshot.

use serde::{Deserialize, Serialize};

/// A 16550.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uart16550 {
    /// Received characters, oldest first.
    pub received: [u8; 16],
    /// Number of received characters.
    pub count: u8,
    /// FIFOs are enabled.
    pub fifos: bool,
    /// IER.
    pub enabled: u8,
    /// LCR.
    pub line_control: u8,
    /// MCR.
    pub modem_control: u8,
    /// Scratch.
    pub scratch: u8,
    /// Divisor, low byte first.
    pub divisor: [u8; 2],
    /// The transmitter-empty interrupt is pending.
    pub empty: bool,
    /// The transmitter appeared full.
    pub full: bool,
}

/// One of the two 8259s.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pic {
    /// Levels of the inputs.
    pub lines: u8,
    /// IRR, edges only.
    pub requests: u8,
    /// ISR.
    pub in_service: u8,
    /// IMR.
    pub mask: u8,
    /// ELCR.
    pub level: u8,
    /// All inputs are level-sensitive, by ICW1.
    pub all_level: bool,
    /// ICW2.
    pub vector: u8,
    /// ICW1.
    pub icw1: u8,
    /// Automatic EOI, by ICW4.
    pub automatic: bool,
    /// ISR is read instead of IRR.
    pub read_in_service: bool,
    /// Number of the ICW that the data port expects: 2 to 4; 0 for the mask.
    pub expects: u8,
}

/// A counter of the 8254.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// 1 to 65,536.
    pub count: u32,
    /// Mode, 0 to 5.
    pub mode: u8,
    /// Access mode: 1 low byte, 2 high byte, 3 both.
    pub access: u8,
    /// The high byte is written next.
    pub writes_high: bool,
    /// The high byte is read next.
    pub reads_high: bool,
    /// The low byte that was written before.
    pub low: u8,
    /// Latched count.
    pub latched: Option<u16>,
    /// Latched status.
    pub status: Option<u8>,
    /// Ticks since the load or trigger; `None` before the first load.
    pub elapsed: Option<u64>,
    /// Elapsed ticks when its gate closed.
    pub stopped: Option<u64>,
}

/// The 8254, and port 0x61.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pit {
    /// Counters.
    pub counters: [Counter; 3],
    /// Bits 1:0 of port 0x61.
    pub speaker: u8,
    /// Ticks until counter 0's next interrupt.
    pub next: Option<u64>,
}

/// The MC146818.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rtc {
    /// Index register.
    pub index: u8,
    /// Offset from the time of day and `lead` in seconds, modulo 2^64.
    pub ahead: u64,
    /// Seconds that are added to the time of day, so that the clock did not go back when the VM moved.
    pub lead: u64,
    /// The time registers while SET is set: year; month, day, hour, minute, second.
    pub setting: (u16, [u8; 5]),
    /// Register A.
    pub a: u8,
    /// Register B.
    pub b: u8,
    /// Memory.
    pub memory: [[u8; 32]; 4],
}

/// The keyboard controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyboard {
    /// Output buffer.
    pub output: Option<u8>,
    /// Status: time-out.
    pub timed_out: bool,
    /// Mode ("command byte").
    pub mode: u8,
    /// Status: the last write was a command.
    pub was_command: bool,
    /// The command that expects a data byte.
    pub wants: Option<u8>,
    /// A20 reads as enabled.
    pub a20: bool,
}

/// The CRT controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Screen {
    /// Index register.
    pub index: u8,
    /// Registers.
    pub registers: [u8; 32],
    /// Status: blanking.
    pub blanked: bool,
}

/// ACPI's fixed registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Power {
    /// PM1a status.
    pub status: u16,
    /// PM1a enable.
    pub enable: u16,
    /// PM1a control.
    pub control: u16,
}

/// An I/O APIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoApic {
    /// IOREGSEL.
    pub select: u8,
    /// Its identifier.
    pub id: u8,
    /// Redirection table.
    pub entries: [u64; 24],
    /// Asserted lines.
    pub lines: u32,
    /// Edges that are not sent yet.
    pub edges: u32,
}

/// Number of [`LocalApic::registers`].
pub const APIC_REGISTERS: usize = 64;

/// A local APIC without posted interrupts: they are in IRR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalApic {
    /// IA32_APIC_BASE.
    pub base: u64,
    /// Registers: those at offsets 0 to 0x1f0, and from 0x200 on, in steps of 16.
    pub registers: [[u32; 32]; APIC_REGISTERS / 32],
    /// Upper half of the ICR in x2APIC mode.
    pub icr_high: u32,
    /// Errors that ESR does not show yet.
    pub errors: u32,
    /// Ticks of the counter until the timer's expiry, if it runs: 0 if that has passed.
    pub timer: Option<u64>,
}
