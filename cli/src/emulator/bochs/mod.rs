//! Bochs: a PC with VMX, emulated instruction by instruction, so that runs repeat.

mod iso;
mod line;
mod obtain;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::{Emulator, Pipes};
use crate::exit;

pub use iso::{Boot, PACKAGES as ISO_PACKAGES, write as write_iso};
pub use obtain::{Bochs, PACKAGES as BUILD_PACKAGES, VERSION, cached, ensure};

/// The CPU models that Stile is tested on.
pub const MODELS: [&str; 3] = ["corei7_skylake_x", "corei7_haswell_4770", "corei7_ivy_bridge_3770k"];

/// The CPU models that have what Stile needs.
pub const USABLE: [&str; 9] = [
    "corei7_skylake_x",
    "corei7_haswell_4770",
    "corei7_ivy_bridge_3770k",
    "broadwell_ult",
    "corei3_cnl",
    "corei7_icelake_u",
    "tigerlake",
    "arrow_lake",
    "sapphire_rapids",
];

/// Devices occupy the addresses from here to 4 GiB.
const DEVICES: u64 = 3 << 30;

/// Maximum memory that Bochs allocates on its host, in MiB.
const HOST_MEMORY_MAX: u64 = 2048;

/// An emulated PC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pc {
    /// The CPU's model.
    pub cpu: String,
    /// Physical CPUs.
    pub cpus: u32,
    /// RAM in bytes.
    pub memory: u64,
    /// The boot protocol.
    pub boot: Boot,
    /// Further lines of the configuration.
    pub extra: Vec<String>,
    /// The file for counts between two marks of a guest (`instrument.cc`).
    pub counts: Option<PathBuf>,
}

impl Pc {
    /// Whether all RAM is in Bochs' memory. Of more it keeps a part in a file, and moves blocks.
    pub(super) fn memory_stays(&self) -> bool {
        self.megabytes() <= HOST_MEMORY_MAX && !self.extra.iter().any(|line| line.starts_with("memory"))
    }

    /// Memory of the configuration in MiB.
    fn megabytes(&self) -> u64 {
        // Memory between 3 and 4 GiB is hidden by the devices.
        let hole = if self.memory > DEVICES { (1 << 32) - DEVICES } else { 0 };
        (self.memory + hole).div_ceil(1 << 20)
    }

    /// The configuration file's text. `image` is the CD-ROM, `share` the directory with the BIOSes, `port`
    /// the host port that listens for the serial line.
    ///
    /// Time is counted in instructions (`ips` per second) and not synchronized to real time, so that runs are
    /// reproducible.
    pub fn configuration(&self, image: &str, share: &str, port: u16) -> String {
        let Self { cpu, cpus, extra, .. } = self;
        let memory = self.megabytes();
        // Bochs keeps further guest memory in a file, by blocks: with many small ones it takes a minute to
        // start.
        let host = match memory {
            ..=HOST_MEMORY_MAX => memory.to_string(),
            _ => format!("{HOST_MEMORY_MAX}, block_size=8192"),
        };
        let mut text = format!(
            "cpu: model={cpu}, count={cpus}, ips=100000000, reset_on_triple_fault=0\n\
             memory: guest={memory}, host={host}\n\
             romimage: file=\"{share}/BIOS-bochs-latest\", options=fastboot\n\
             vgaromimage: file=\"{share}/vgabios.bin\"\n\
             vga: extension=vbe, update_freq=5, realtime=0\n\
             clock: sync=none, time0=utc\n\
             boot: cdrom\n\
             ata0-master: type=cdrom, path=\"{image}\", status=inserted\n\
             com1: enabled=1, mode=socket-client, dev=127.0.0.1:{port}\n\
             display_library: nogui\n\
             log: /dev/null\n\
             panic: action=fatal\n\
             error: action=ignore\n\
             info: action=ignore\n\
             debug: action=ignore\n"
        );
        for line in extra {
            text += line;
            text.push('\n');
        }
        text
    }
}

/// Starts Bochs with a bootable image on a CD-ROM.
///
/// # Errors
/// Bochs is missing, or can't be started.
pub fn start(pc: &Pc, image: &Path) -> Result<(Emulator, Pipes)> {
    let bochs = ensure()?;
    let files = tempfile::Builder::new().prefix("stile-").tempdir().context("making a temporary directory")?;
    let iso = files.path().join("stile.iso");
    iso::write(image, &pc.boot, None, &iso)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening for the serial line")?;
    let configuration = files.path().join("bochsrc");
    let text = pc.configuration(quotable(&iso, "TMPDIR")?, quotable(&bochs.dir, "STILE_CACHE")?, listener.local_addr()?.port());
    fs::write(&configuration, text).with_context(|| format!("writing {}", configuration.display()))?;

    let mut command = Command::new(&bochs.program);
    command.arg("-q").arg("-f").arg(&configuration).env("BXSHARE", &bochs.dir);
    command.envs(pc.counts.iter().map(|counts| ("STILE_COUNTS", counts)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Its status is always 1, even after a regular power-off: Stile's own messages are evaluated.
    let mut emulator = Emulator::spawn(&mut command, |status| status.code() == Some(1), Some(Box::new(files)))
        .map_err(|error| exit::lacking(format!("{} can't be started: {error}", bochs.program.display())))?;
    let errors = emulator.child().stderr.take().context("the emulator has no pipes")?;
    let errors = Panics { lines: BufReader::new(errors), rest: Vec::new() };
    let line = line::connection(&listener, &mut emulator)?;
    let input = line.try_clone().context("sharing the serial line")?;
    Ok((emulator, Pipes { input: Box::new(input), output: Box::new(line), errors: Box::new(errors) }))
}

/// A path as text that Bochs' configuration can have within quotes. `variable` sets its directory.
///
/// # Errors
/// Bochs would understand another path.
fn quotable<'p>(path: &'p Path, variable: &str) -> Result<&'p str> {
    // A variable, the quote's end, the line's end, and parameters without the empty ones between them.
    let fits = |text: &&str| !text.contains(['$', '"', '\n']) && !text.contains(",,");
    path.to_str().filter(fits).ok_or_else(|| {
        exit::usage(format!("{}: Bochs can't read a path with $, \" or ,, in it: set {variable} to another directory", path.display()))
    })
}

/// Filters Bochs' messages: only panics are passed on, except for the shutdown requested by Stile.
struct Panics<R> {
    lines: BufReader<R>,
    rest: Vec<u8>,
}

fn is_news(line: &str) -> bool {
    line.contains(">>PANIC<<") && !line.contains("Shutdown port")
}

impl<R: Read> Read for Panics<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.rest.is_empty() {
            let mut line = Vec::new();
            if self.lines.read_until(b'\n', &mut line)? == 0 {
                return Ok(0);
            }
            if is_news(&String::from_utf8_lossy(&line)) {
                self.rest = line;
            }
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_contains_the_given_values() {
        let pc = Pc {
            cpu: MODELS[0].into(),
            cpus: 2,
            memory: (1 << 30) + 1,
            boot: Boot::default(),
            extra: vec!["magic_break: enabled=0".into()],
            counts: None,
        };
        let text = pc.configuration("/a, #b/stile.iso", "/share", 4444);
        for line in [
            "cpu: model=corei7_skylake_x, count=2, ips=100000000, reset_on_triple_fault=0",
            "memory: guest=1025, host=1025",
            "romimage: file=\"/share/BIOS-bochs-latest\", options=fastboot",
            "ata0-master: type=cdrom, path=\"/a, #b/stile.iso\", status=inserted",
            "com1: enabled=1, mode=socket-client, dev=127.0.0.1:4444",
            "magic_break: enabled=0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
        let large = Pc { memory: 5 << 30, ..pc }.configuration("/a/stile.iso", "/share", 4444);
        assert!(large.contains("memory: guest=6144, host=2048, block_size=8192\n"), "Bochs takes no more");
    }

    #[test]
    fn paths_that_bochs_can_t_read_are_refused() {
        assert_eq!(quotable(Path::new("/a b,#c"), "TMPDIR").unwrap(), "/a b,#c");
        for path in ["/$HOME", "/a\"b", "/a,,b"] {
            assert!(quotable(Path::new(path), "TMPDIR").unwrap_err().to_string().contains("set TMPDIR"), "{path}");
        }
    }

    #[test]
    fn only_panics_are_passed_on() {
        let said = "00000000000i[      ] reading configuration\n\
            00000000001p[CPU0  ] >>PANIC<< exception(): 3rd exception\n\
            00000000002p[UNMAP ] >>PANIC<< Shutdown port: shutdown requested\n";
        let mut panics = Panics { lines: BufReader::new(said.as_bytes()), rest: Vec::new() };
        let mut text = String::new();
        panics.read_to_string(&mut text).unwrap();
        assert_eq!(text, "00000000001p[CPU0  ] >>PANIC<< exception(): 3rd exception\n");
    }
}
