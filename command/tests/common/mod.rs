//! The command `stile` in an isolated environment: scripts as emulator and cargo, a small hypervisor and a small kernel.

#![allow(dead_code, reason = "each test uses a part of this module")]

use std::fs;
use std::io::PipeWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stile_wire::{Channel, Encoder, Event, Level, Version, VmState};

/// A directory with the scripts, and what they print.
pub struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    /// Returns a machine whose emulator prints these bytes on its serial line.
    pub fn new(line: &[u8]) -> Self {
        let sandbox = Self { dir: tempfile::tempdir().expect("a directory") };
        fs::write(sandbox.path("line"), line).expect("a file");
        fs::write(sandbox.path("kernel"), kernel()).expect("a file");
        fs::write(sandbox.path("hypervisor"), hypervisor()).expect("a file");
        let dir = sandbox.dir.path().display();
        let version = "*--version*) echo 'QEMU emulator version 10.0.2' ;;";
        sandbox.script("qemu-system-aarch64", &format!("case \"$*\" in\n{version}\n*) cat {dir}/line ;;\nesac\n"));
        let artifact = format!(
            r#"{{"reason":"compiler-artifact","target":{{"name":"stile-hypervisor","kind":["bin"]}},"executable":"{dir}/hypervisor","fresh":true}}"#
        );
        sandbox.script("cargo", &format!("echo '{artifact}'\n"));
        sandbox
    }

    /// Path of a file in the sandbox.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts a shell script into it.
    pub fn script(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    }

    /// The command with these words, in this sandbox.
    pub fn stile(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stile"));
        let path = format!("{}:/usr/bin:/bin", self.dir.path().display());
        command.args(words).current_dir(self.dir.path()).env("PATH", path).env("CARGO", self.path("cargo"));
        command
            .env("STILE_CACHE", self.path("cache"))
            .env("TMPDIR", self.tmp())
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// `stile run` of the small kernel, with further words.
    pub fn run(&self, words: &[&str]) -> Command {
        let mut command = self.stile(&["run", "--kernel", "kernel", "--memory", "64M"]);
        command.args(words);
        command
    }

    /// Its directory for temporary files.
    pub fn tmp(&self) -> PathBuf {
        let tmp = self.path("tmp");
        fs::create_dir_all(&tmp).expect("a directory");
        tmp
    }
}

/// An arm64 Image of NOPs: image_size at 16, magic at 56 ("Booting AArch64 Linux").
fn kernel() -> Vec<u8> {
    let mut kernel = [0x1f, 0x20, 0x03, 0xd5].repeat(32);
    kernel[8..64].fill(0);
    kernel[16..24].copy_from_slice(&4096u64.to_le_bytes());
    kernel[56..60].copy_from_slice(b"ARM\x64");
    kernel
}

/// The serial output of a machine with one VM that prints `text` and turns off.
pub fn line(text: &str) -> Vec<u8> {
    let mut line = Vec::new();
    let mut encoder = Encoder::new();
    let mut sink = |byte| line.push(byte);
    let version = Version { major: 0, minor: 1, patch: 0 };
    encoder.event(&Event::Hello { version, cpus: 1, level: Level::Vhe, vms: 1 }, &mut sink);
    encoder.bytes(Channel::LOG, b"Stile is up\n", &mut sink);
    encoder.event(&Event::Vm { vm: 0, state: VmState::Started }, &mut sink);
    encoder.bytes(Channel::console(0), text.as_bytes(), &mut sink);
    encoder.event(&Event::Vm { vm: 0, state: VmState::PoweredOff }, &mut sink);
    encoder.event(&Event::End { status: 0 }, &mut sink);
    line
}

/// An ELF file with one segment, which begins as an arm64 `Image` does.
fn hypervisor() -> Vec<u8> {
    const BASE: u64 = 0x7f80_0000_0000;
    const LEN: usize = 0x800;
    let mut bytes = vec![0; 120 + LEN];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &2u16.to_le_bytes());
    put(18, &183u16.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(24, &BASE.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(52, &64u16.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &1u16.to_le_bytes());
    put(58, &64u16.to_le_bytes());
    for (index, field) in [1 | 7 << 32, 120, BASE, BASE, LEN as u64, LEN as u64, 4096].into_iter().enumerate() {
        put(64 + 8 * index, &field.to_le_bytes());
    }
    put(120 + 24, &0xa_u64.to_le_bytes());
    put(120 + 56, b"ARM\x64");
    bytes
}

/// A pipe whose reader has left.
pub fn left_pipe() -> PipeWriter {
    std::io::pipe().expect("a pipe").1
}

/// A file on a full disk.
pub fn full_disk() -> fs::File {
    fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full")
}

/// The status and standard error of a command that ended.
pub fn end(output: &Output) -> (i32, String) {
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Whether a directory is empty.
pub fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).expect("a directory").next().is_none()
}
