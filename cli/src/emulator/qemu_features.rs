//! Features of the emulator's CPU models, read from the CPUs' registers.
//!
//! A program of a few instructions reads the identification registers at EL2 and writes them to the board's UART.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::qemu::PROGRAM;

/// The models that Stile is tested on, and others with features that it will use.
pub const MODELS: [&str; 6] = ["max", "neoverse-n2", "neoverse-v1", "neoverse-n1", "cortex-a76", "cortex-a57"];

/// The features of a CPU model that matter to a hypervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    registers: [u64; REGISTERS.len()],
}

/// An identification register: CRm and op2 of its encoding (op0 = 3, op1 = 0, CRn = 0).
struct Register {
    crm: u32,
    op2: u32,
}

const PFR0: usize = 0;
const PFR1: usize = 1;
const MMFR0: usize = 2;
const MMFR1: usize = 3;
const MMFR2: usize = 4;
const ISAR1: usize = 5;

const REGISTERS: [Register; 6] = [
    Register { crm: 4, op2: 0 },
    Register { crm: 4, op2: 1 },
    Register { crm: 7, op2: 0 },
    Register { crm: 7, op2: 1 },
    Register { crm: 7, op2: 2 },
    Register { crm: 6, op2: 1 },
];

/// A feature: name, register, lowest bit of the four-bit field, least value that means that it is there.
/// (Arm Architecture Reference Manual for A-profile, "AArch64 System register Descriptions", the register by its name.)
const FIELDS: [(&str, usize, u32, u64); 15] = [
    ("VHE", MMFR1, 8, 1),
    ("NV", MMFR2, 24, 1),
    ("NV2", MMFR2, 24, 2),
    ("VMID16", MMFR1, 4, 2),
    ("FWB", MMFR2, 40, 1),
    ("EVT", MMFR2, 56, 1),
    ("FGT", MMFR0, 56, 1),
    ("ECV", MMFR0, 60, 1),
    ("HCX", MMFR1, 40, 1),
    ("RAS", PFR0, 28, 1),
    ("SVE", PFR0, 32, 1),
    ("SME", PFR1, 24, 1),
    ("MTE", PFR1, 8, 2),
    ("BTI", PFR1, 0, 1),
    // Pointer authentication by an algorithm of the implementation's own (API) or the architected one (APA): either will do.
    ("PAuth", ISAR1, 4, 1),
];

impl Features {
    /// The names of the features that are there.
    pub fn names(&self) -> Vec<&'static str> {
        let field = |register: usize, shift: u32| (self.registers[register] >> shift) & 0xf;
        FIELDS
            .iter()
            .filter(|(name, register, shift, least)| field(*register, *shift) >= *least || (*name == "PAuth" && field(ISAR1, 8) != 0))
            .map(|(name, ..)| *name)
            .collect()
    }
}

/// Asks a model for its features.
///
/// # Errors
/// The emulator doesn't know the model, or fails.
pub fn features(model: &str) -> Result<Features> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&program())?;
    let mut child = Command::new(PROGRAM)
        .args(["-M", "virt,virtualization=on,gic-version=3", "-cpu", model, "-m", "64M", "-nodefaults", "-display", "none"])
        .args(["-serial", "stdio", "-kernel"])
        .arg(file.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {PROGRAM}"))?;
    // It takes a fraction of a second, unless the host is very busy.
    let until = Instant::now() + Duration::from_secs(300);
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it failed"));
    }
    decode(&output.stdout)
}

fn decode(output: &[u8]) -> Result<Features> {
    if output.len() != REGISTERS.len() * 8 {
        bail!("the probe said {} bytes, not {}", output.len(), REGISTERS.len() * 8);
    }
    let mut registers = [0; REGISTERS.len()];
    for (register, bytes) in registers.iter_mut().zip(output.chunks_exact(8)) {
        *register = bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u64::from(byte));
    }
    Ok(Features { registers })
}

/// The program, little endian.
fn program() -> Vec<u8> {
    const MOV_X1_UART: u32 = 0xd2a1_2001; // movz x1, #0x900, lsl #16: the board's PL011
    const STRB_W0_X1: u32 = 0x3900_0020;
    const LSR_X0_8: u32 = 0xd348_fc00;
    const MRS_X0: u32 = 0xd538_0000;
    // PSCI SYSTEM_OFF, 0x8400_0008, by SMC.
    const OFF: [u32; 4] = [0x52b0_8000, 0x7280_0100, 0xd400_0003, 0x1400_0000];

    let mut code = vec![MOV_X1_UART];
    for register in REGISTERS {
        code.push(MRS_X0 | (register.crm << 8) | (register.op2 << 5));
        for _ in 0..8 {
            code.extend([STRB_W0_X1, LSR_X0_8]);
        }
    }
    code.extend(OFF);
    code.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_from_the_registers() {
        let mut registers = [0u64; REGISTERS.len()];
        registers[MMFR1] = 1 << 8;
        registers[MMFR2] = 1 << 24;
        registers[ISAR1] = 1 << 8;
        let output: Vec<u8> = registers.iter().flat_map(|register| register.to_le_bytes()).collect();
        assert_eq!(decode(&output).unwrap().names(), ["VHE", "NV", "PAuth"]);
        assert!(decode(b"short").is_err());
    }
}
