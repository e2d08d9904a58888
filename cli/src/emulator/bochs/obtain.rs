//! Obtains Bochs: Debian's source package, built once and cached.
//!
//! Debian's binary package depends on half a desktop, and is built with a debugger. A build for this purpose
//! is nearly twice as fast, and works on any distribution with a C++ compiler.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use flate2::Crc;

use crate::debian::{self, Apt, Package, Wanted};
use crate::progress::Task;
use crate::{cache, exit};

/// Debian's release with the tested version.
const SUITE: &str = "trixie";
/// The version.
pub const VERSION: &str = "3.0";
/// The package of the compiler that builds it, and of make.
pub const PACKAGES: &str = "g++ make";

const BIOS: &str = "BIOS-bochs-latest";
const VGA_BIOS: &str = "vgabios.bin";

/// Approximate number of source files, for the progress bar only.
const SOURCE_FILES: f64 = 466.0;

/// Fixes of its sources: file, text, and replacement.
///
/// - A VM entry must end the masking of physical interrupts that RFLAGS.IF clear causes outside a guest; 3.0
///   reevaluates it only when IF changes. A guest entered with interrupts disabled would never be
///   interrupted.
/// - A virtual interrupt pending on RFLAGS.IF must not be delivered because a physical one arrives.
/// - With several processors, event delivery (and a VM entry or exit that ends with one) must commit RIP and
///   RSP before pending events are checked, as with one processor: an interrupt that exited between a page
///   fault's delivery and its handler's first instruction saved the RIP from before the fault with all other
///   state from after it.
/// - A data breakpoint deferred by MOV SS must be delivered after INT n or INT3, if that is the next
///   instruction: it was lost.
/// - A posted-interrupt notification without posted interrupts must not change the guest interrupt status:
///   3.0 takes "no vector", -1, for vector 255, delivers it, and then blocks all other interrupts.
/// - An exit during the delivery of a virtual interrupt must report it, as for every other event: 3.0 reports
///   the event before.
/// - A guest that waits by HLT without an exit must be woken by a virtual interrupt, must stay in HLT through a
///   physical interrupt that exits (the exit saves the state) or is a posted-interrupt notification, and must see
///   to these with RFLAGS.IF clear, too: 3.0 sleeps on, wakes, and sleeps on.
/// - VM entries, and VMREAD, VMWRITE and PAUSE outside guests, are reported to [`INSTRUMENT`], for which Bochs has no callback.
const MENDED: [(&str, &str, &str); 12] = [
    (
        "cpu/vmx.cc",
        "  BX_CPU_THIS_PTR in_vmx_guest = true;\n",
        "  BX_CPU_THIS_PTR in_vmx_guest = true;\n  BX_INSTR_VMENTRY(BX_CPU_ID);\n  handleInterruptMaskChange();\n",
    ),
    (
        "cpu/event.cc",
        "    if (is_pending(BX_EVENT_PENDING_VMX_VIRTUAL_INTR)) {\n",
        "    if (is_unmasked_event_pending(BX_EVENT_PENDING_VMX_VIRTUAL_INTR)) {\n",
    ),
    (
        "cpu/cpu.cc",
        "void BX_CPU_C::cpu_run_trace(void)\n{\n",
        "void BX_CPU_C::cpu_run_trace(void)\n{\n  BX_CPU_THIS_PTR prev_rip = RIP;\n  BX_CPU_THIS_PTR speculative_rsp = false;\n",
    ),
    (
        "cpu/exception.cc",
        "  BX_CPU_THIS_PTR debug_trap = 0;\n",
        "  BX_CPU_THIS_PTR debug_trap &= soft_int && interrupts_inhibited(BX_INHIBIT_DEBUG) ? BX_DEBUG_TRAP_HIT | 0xf : 0;\n",
    ),
    (
        "cpu/vapic.cc",
        "  BX_CPU_THIS_PTR EXT = 1; /* external event */\n",
        "  BX_CPU_THIS_PTR EXT = 1; /* external event */\n  vm->idt_vector_info = vector | (BX_EXTERNAL_INTERRUPT << 8);\n",
    ),
    (
        "cpu/vapic.cc",
        "  vector = BX_CPU_THIS_PTR lapic->highest_priority_int(virr);\n  if (vector >= vm->rvi) vm->rvi = vector;\n",
        "  const int highest = BX_CPU_THIS_PTR lapic->highest_priority_int(virr);\n  if (highest > vm->rvi) vm->rvi = highest;\n",
    ),
    (
        "cpu/event.cc",
        "            BX_EVENT_VMX_VIRTUAL_NMI))\n    {\n      // interrupt ends",
        "            BX_EVENT_VMX_VIRTUAL_NMI | (BX_CPU_THIS_PTR in_vmx_guest ? BX_EVENT_PENDING_VMX_VIRTUAL_INTR : 0)))\n    {\n      // interrupt ends",
    ),
    (
        "cpu/event.cc",
        "  while (1)\n  {\n    if ((is_pending(BX_EVENT_PENDING_INTR",
        "  while (1)\n  {\n    if (BX_CPU_THIS_PTR in_vmx_guest && BX_CPU_THIS_PTR vmcs.pin_vmexec_ctrls.EXTERNAL_INTERRUPT_VMEXIT() &&\n        is_unmasked_event_pending(BX_EVENT_PENDING_INTR | BX_EVENT_PENDING_LAPIC_INTR) &&\n        ! is_unmasked_event_pending(BX_EVENT_NMI | BX_EVENT_SMI | BX_EVENT_INIT | BX_EVENT_PENDING_VMX_VIRTUAL_INTR))\n    {\n      BX_CPU_THIS_PTR inhibit_mask = 0;\n      break;\n    }\n    if ((is_pending(BX_EVENT_PENDING_INTR",
    ),
    (
        "cpu/event.cc",
        "    HandleExtInterrupt();\n",
        "    HandleExtInterrupt();\n    if (BX_CPU_THIS_PTR activity_state != BX_ACTIVITY_STATE_ACTIVE) return handleAsyncEvent();\n",
    ),
    ("cpu/vmx.cc", "    field_64 = vmread(encoding);\n", "    { BX_INSTR_VMREAD(); field_64 = vmread(encoding); }\n"),
    ("cpu/vmx.cc", "    vmwrite(encoding, val_64);\n", "    { BX_INSTR_VMWRITE(); vmwrite(encoding, val_64); }\n"),
    ("cpu/proc_ctrl.cc", "    VMexit_PAUSE();\n", "    VMexit_PAUSE();\n  else\n    BX_INSTR_PAUSE(BX_CPU_ID);\n"),
];

/// Replaces Bochs' instrumentation stubs by counters: files and their contents.
const INSTRUMENT: [(&str, &str); 2] =
    [("instrument/stubs/instrument.h", include_str!("instrument.h")), ("instrument/stubs/instrument.cc", include_str!("instrument.cc"))];

/// With VMX, AVX-512 and several CPUs; without a display, a debugger, or the statistics signal, whose handler
/// can block forever.
const CONFIGURE: [&str; 13] = [
    "--with-nogui",
    "--enable-smp",
    "--enable-x86-64",
    "--enable-cpu-level=6",
    "--enable-vmx=2",
    "--enable-avx",
    "--enable-evex",
    "--enable-all-optimizations",
    "--disable-plugins",
    "--disable-debugger",
    "--disable-show-ips",
    "--disable-docbook",
    "--enable-instrumentation",
];

/// A built Bochs.
#[derive(Debug, Clone)]
pub struct Bochs {
    /// The directory with the program and its BIOSes.
    pub dir: PathBuf,
    /// The program.
    pub program: PathBuf,
}

impl Bochs {
    fn at(dir: &Path) -> Option<Self> {
        let program = dir.join("bochs");
        let complete = [&program, &dir.join(BIOS), &dir.join(VGA_BIOS)].into_iter().all(|file| file.exists());
        complete.then(|| Self { dir: dir.to_owned(), program })
    }
}

/// Its directory in the cache. The name has a checksum of Stile's changes, so that a change requires a new
/// build.
fn directory() -> Result<PathBuf> {
    let mut sum = Crc::new();
    let mended = MENDED.iter().flat_map(|(file, line, better)| [*file, *line, *better]);
    let instrument = INSTRUMENT.iter().flat_map(|(file, text)| [*file, *text]);
    mended.chain(instrument).chain(CONFIGURE).for_each(|text| sum.update(text.as_bytes()));
    Ok(cache::dir()?.join("bochs").join(format!("{VERSION}-{:08x}-{}", sum.sum(), std::env::consts::ARCH)))
}

/// Bochs, if it is in the cache.
pub fn cached() -> Option<Bochs> {
    Bochs::at(&directory().ok()?)
}

/// Bochs, from the cache or newly built.
///
/// # Errors
/// No mirror is configured, or no compiler is installed.
pub fn ensure() -> Result<Bochs> {
    if let Some(bochs) = cached() {
        return Ok(bochs);
    }
    let dir = directory()?;
    let bochs = dir.parent().context("the cache has no place for Bochs")?;
    let _lock = cache::lock(bochs, "build")?;
    // Another command may have made it while this one waited.
    if let Some(bochs) = cached() {
        return Ok(bochs);
    }
    if !runs("g++") || !runs("make") {
        return Err(exit::lacking(format!("Bochs must be built: install the packages {PACKAGES}")));
    }
    // Built aside and moved into place: an interrupted command leaves no partial build.
    let made = tempfile::tempdir_in(bochs)?;
    make(bochs, made.path())?;
    let made = made.keep();
    fs::rename(&made, &dir).with_context(|| format!("moving {} to {}", made.display(), dir.display()))?;
    Bochs::at(&dir).context("Bochs was built, but is not complete")
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn make(cache: &Path, to: &Path) -> Result<()> {
    let apt = Apt::with_sources(&cache.join("apt"), SUITE, &debian::mirror()?)?;
    let packages = apt.packages()?;
    let newest = |name| debian::newest_named(&packages, name).with_context(|| format!("Debian {SUITE} has no {name}"));
    let bios = newest("bochsbios")?;
    if !bios.version.starts_with(VERSION) {
        bail!("Debian {SUITE} has Bochs {}, and Stile knows {VERSION} only", bios.version);
    }
    let bioses: [(Package, &[Wanted]); 2] = [
        (bios.clone(), &[Wanted { is: |path| path == "usr/share/bochs/BIOS-bochs-latest", name: BIOS, required: true }]),
        (newest("vgabios")?, &[Wanted { is: |path| path == "usr/share/vgabios/vgabios.bin", name: VGA_BIOS, required: true }]),
    ];
    for (package, wanted) in bioses {
        let download = tempfile::tempdir_in(cache)?;
        debian::extract(&apt.download(&package, download.path())?, wanted, to)?;
    }
    let work = tempfile::tempdir_in(cache)?;
    let archive = apt.download_source(&Package { name: "bochs".into(), ..bios }, work.path())?;
    let task = Task::start(format!("building Bochs {VERSION} (once; it takes some minutes)"));
    let unpacked = lzma_rust2::XzReader::new(File::open(&archive)?, true);
    tar::Archive::new(unpacked).unpack(work.path()).with_context(|| format!("unpacking {}", archive.display()))?;
    let sources = work.path().join(format!("bochs-{VERSION}"));
    mend(&sources)?;
    compile(&sources, &task)?;
    fs::copy(sources.join("bochs"), to.join("bochs")).context("Bochs was built, but has no program")?;
    Ok(())
}

fn mend(sources: &Path) -> Result<()> {
    for (file, line, better) in MENDED {
        let path = sources.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let Some((before, after)) = text.split_once(line).filter(|(_, after)| !after.contains(line)) else {
            bail!("{file} of Bochs {VERSION} is not as Stile knows it");
        };
        fs::write(&path, [before, better, after].concat()).with_context(|| format!("writing {}", path.display()))?;
    }
    for (file, text) in INSTRUMENT {
        let path = sources.join(file);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn compile(sources: &Path, task: &Task) -> Result<()> {
    let output = Command::new("./configure")
        .current_dir(sources)
        .args(CONFIGURE)
        .env("CXXFLAGS", "-O2")
        .env("CFLAGS", "-O2")
        .env("LDFLAGS", "-s")
        .stdin(Stdio::null())
        .output()
        .context("starting Bochs' configure")?;
    if !output.status.success() {
        bail!("Bochs can't be configured:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let log = File::create(sources.join("errors.log"))?;
    let mut make = Command::new("make")
        .current_dir(sources)
        .args([&format!("-j{jobs}"), "bochs"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("starting make")?;
    let mut files = 0.0;
    if let Some(lines) = make.stdout.take() {
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            if line.contains(" -c ") {
                files += 1.0;
                task.percent(100.0 * files / SOURCE_FILES);
            }
        }
    }
    let status = make.wait().context("waiting for make")?;
    if !status.success() {
        let errors = fs::read_to_string(sources.join("errors.log")).unwrap_or_default();
        let last: Vec<&str> = errors.lines().rev().take(20).collect();
        bail!("Bochs can't be built ({status}):\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
    }
    Ok(())
}
