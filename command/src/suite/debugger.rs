//! A debugger of an emulated machine, by GDB's remote serial protocol.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// QEMU's numbers of registers in its protocol for debuggers, of a PC and of an Arm machine.
pub const RAX: u32 = 0;
pub const RDX: u32 = 3;
pub const RSP: u32 = 7;
pub const RIP: u32 = 16;
pub const CR3: u32 = 29;
pub const CR4: u32 = 30;
pub const X1: u32 = 1;
pub const PC: u32 = 32;

/// Bytes of memory in a packet, whose length is limited.
const MOST: usize = 512;

/// A debugger. The machine stands still while it is connected.
pub struct Debugger(UnixStream);

impl Debugger {
    /// The emulator's argument after `-gdb`.
    pub fn argument(dir: &Path) -> String {
        format!("unix:{},server=on,wait=off", dir.join("gdb.sock").display())
    }

    /// Connects, which stops the machine.
    ///
    /// # Errors
    /// The emulator does not answer.
    pub fn connect(dir: &Path) -> Result<Debugger> {
        const TRIES: u32 = 300;
        let mut tries = 0..TRIES;
        let socket = loop {
            match UnixStream::connect(dir.join("gdb.sock")) {
                Ok(socket) => break socket,
                Err(error) if error.kind() != ErrorKind::NotFound && error.kind() != ErrorKind::ConnectionRefused => {
                    return Err(error.into());
                }
                Err(error) if tries.next().is_none() => return Err(error).context("connecting to the emulator"),
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        };
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut debugger = Debugger(socket);
        debugger.ask("?")?;
        Ok(debugger)
    }

    /// Sends a packet. Returns the answer.
    fn ask(&mut self, packet: &str) -> Result<String> {
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        write!(self.0, "${packet}#{sum:02x}")?;
        let mut byte = || -> Result<u8> {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            Ok(byte[0])
        };
        while byte()? != b'$' {}
        let mut answer = String::new();
        loop {
            match byte()? {
                b'#' => break,
                other => answer.push(other.into()),
            }
        }
        // The sum.
        for _ in 0..2 {
            byte()?;
        }
        write!(self.0, "+")?;
        Ok(answer)
    }

    fn expect_ok(&mut self, packet: &str) -> Result<()> {
        let answer = self.ask(packet)?;
        ensure!(answer == "OK", "the emulator answers {answer:?} to {packet:?}");
        Ok(())
    }

    /// A register of the CPU that stopped, by its number.
    ///
    /// # Errors
    /// The emulator's answer is no number.
    pub fn register(&mut self, number: u32) -> Result<u64> {
        let answer = self.ask(&format!("p{number:x}"))?;
        Ok(u64::from_str_radix(&answer, 16).with_context(|| format!("register {number} is {answer:?}"))?.swap_bytes())
    }

    /// Sets a register.
    ///
    /// # Errors
    /// The emulator refuses.
    pub fn set_register(&mut self, number: u32, value: u64) -> Result<()> {
        self.expect_ok(&format!("P{number:x}={:016x}", value.swap_bytes()))
    }

    /// Reads memory.
    ///
    /// # Errors
    /// There is none.
    pub fn read(&mut self, address: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let (at, part) = (address + bytes.len() as u64, (length - bytes.len()).min(MOST));
            let answer = self.ask(&format!("m{at:x},{part:x}"))?;
            for pair in answer.as_bytes().chunks(2) {
                let digits = std::str::from_utf8(pair)?;
                bytes.push(u8::from_str_radix(digits, 16).with_context(|| format!("memory at {at:#x} is {answer:?}"))?);
            }
        }
        Ok(bytes)
    }

    /// Reads a word of memory.
    ///
    /// # Errors
    /// There is none.
    pub fn read_word(&mut self, address: u64) -> Result<u64> {
        let bytes = self.read(address, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().ok().context("no eight bytes")?))
    }

    /// Writes memory.
    ///
    /// # Errors
    /// The emulator refuses.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        for (address, bytes) in (address..).step_by(MOST).zip(bytes.chunks(MOST)) {
            let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            self.expect_ok(&format!("M{address:x},{:x}:{text}", bytes.len()))?;
        }
        Ok(())
    }

    /// Lets the machine run until a CPU is at an address.
    ///
    /// # Errors
    /// The emulator refuses, or ends.
    pub fn run_to(&mut self, address: u64) -> Result<()> {
        // By the CPU's debug registers: an instruction of a breakpoint in memory could be overwritten.
        self.expect_ok(&format!("Z1,{address:x},1"))?;
        let answer = self.ask("c")?;
        ensure!(answer.starts_with('T'), "the emulator answers {answer:?} where it was to stop");
        self.expect_ok(&format!("z1,{address:x},1"))
    }

    /// Disconnects: the machine goes on.
    ///
    /// # Errors
    /// The emulator refuses.
    pub fn leave(mut self) -> Result<()> {
        self.expect_ok("D")
    }
}
