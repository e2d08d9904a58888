//! Valid values of settings that name something of this computer. Each function reports an invalid value and returns none.

use std::path::{Path, PathBuf};

pub use stile_config::value::*;
use stile_pci::{Address, ParseError};

use super::{
    Arch, DebianKernel, Flags, InitrdSource, KernelSource, MachineConfig, Mistake, Place,
    draft::{Given, VmDraft},
    file_like::file_like,
};

pub fn arch(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Arch> {
    if let Some(arch) = Arch::ALL.into_iter().find(|arch| given.value == arch.name()) {
        return Some(arch);
    }
    let names = Arch::ALL.map(Arch::name);
    let mistake = wrong(given, format!("Stile does not run on architecture \"{}\"", given.value));
    let mistake = mistake.expected(format!("\"{}\"", names.join("\" or \"")));
    mistakes.push(match &given.value[..] {
        "arm64" | "armv8" | "arm" | "aarch64le" => mistake.similar(Arch::Aarch64.name()),
        "amd64" | "x86-64" | "x64" | "x86" | "i386" | "intel64" => mistake.similar(Arch::X86_64.name()),
        other => mistake.similar_among(other, names),
    });
    None
}

pub fn cpu_model(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.,=+".contains(c);
    if !given.value.is_empty() && given.value.chars().all(fits) {
        return Some(given.value.clone());
    }
    let what = format!("\"{}\" is not a CPU model", given.value);
    mistakes.push(wrong(given, what).expected("one of the emulator's, such as \"max\" or \"cortex-a57\""));
    None
}

/// Resolves Stile in a virtual machine: the machine of `file`, or one with a Debian VM, to which the command
/// applies.
fn stile(
    given: &Given<String>,
    file: Option<&str>,
    draft: &VmDraft,
    arch: Arch,
    folder: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<KernelSource> {
    if draft.inside {
        mistakes.push(wrong(given, "a Stile in a virtual machine can have none in its own").expected("another kernel"));
        return None;
    }
    let value = |given: &Option<Given<String>>| given.as_ref().map(|given| given.value.clone());
    let exec = value(&draft.exec);
    let alone = |default: &str| file.is_none().then(|| default.to_owned());
    let flags = Flags {
        kernel: alone("debian"),
        initrd: alone("busybox"),
        on_reset: exec.is_some().then(|| value(&draft.on_reset)).flatten(),
        exec,
        inside: Some(arch),
        ..Flags::default()
    };
    let path = file.map(|file| folder.join(file));
    match MachineConfig::load(path.as_deref(), &flags) {
        Ok(machine) if machine.arch == arch => Some(KernelSource::Stile(Box::new(machine))),
        Ok(machine) => {
            let what = format!("a virtual machine can't be a machine of architecture {}", machine.arch.name());
            mistakes.push(wrong(given, what).expected(arch.name()));
            None
        }
        Err(inner) => {
            let more = match path {
                Some(path) if inner.count() > 1 => format!(" (`stile check {}` shows all)", path.display()),
                _ => String::new(),
            };
            mistakes.push(wrong(given, format!("its machine has an error: {}{more}", inner.first())));
            None
        }
    }
}

pub fn kernel(draft: &VmDraft, arch: Arch, folder: &Path, mistakes: &mut Vec<Mistake>) -> Option<KernelSource> {
    let words = DebianKernel::WORDS.map(|(word, _)| word);
    let words_shown = words.map(|word| format!("\"{word}\"")).join(", ");
    let Some(given) = &draft.kernel else {
        if !draft.kernel_unreadable && draft.disks.iter().any(|disk| !disk.in_memory) {
            return Some(KernelSource::Disk);
        }
        if !draft.kernel_unreadable {
            let what = "this virtual machine has no kernel";
            let expected = format!("kernel = a path, \"stile\", or one of {words_shown}; or a [[vm.disk]] with a system, not in memory");
            mistakes.push(Mistake::new(draft.place.clone(), what).expected(expected));
        }
        return None;
    };
    if let Some((_, kernel)) = DebianKernel::WORDS.iter().find(|(word, _)| *word == given.value) {
        return Some(KernelSource::Debian(*kernel));
    }
    if let Some(rest) = given.value.strip_prefix(KernelSource::STILE)
        && (rest.is_empty() || rest.starts_with(':'))
    {
        return stile(given, rest.strip_prefix(':'), draft, arch, folder, mistakes);
    }
    if given.value.starts_with("debian:") {
        let what = format!("there is no kernel \"{}\"", given.value);
        mistakes.push(wrong(given, what).expected(format!("one of {words_shown}")).similar_among(&given.value, words));
        return None;
    }
    let expected = format!("a file, \"stile\", or one of {words_shown}");
    file(given, "kernel", &expected, &words, folder, mistakes).map(KernelSource::File)
}

pub fn initrd(given: &Given<String>, folder: &Path, mistakes: &mut Vec<Mistake>) -> Option<InitrdSource> {
    match &given.value[..] {
        "none" => Some(InitrdSource::None),
        "busybox" => Some(InitrdSource::Busybox),
        _ => {
            let expected = "a file, \"busybox\" or \"none\"";
            file(given, "initrd", expected, &["busybox", "none"], folder, mistakes).map(InitrdSource::File)
        }
    }
}

/// Answers for Debian's installer, which no other kernel reads.
pub fn preseed(given: &Given<String>, draft: &VmDraft, folder: &Path, mistakes: &mut Vec<Mistake>) -> Option<InitrdSource> {
    let installer = DebianKernel::Installer.word();
    let kernel = draft.kernel.as_ref().map(|kernel| &kernel.value[..]);
    if let (true, Some(initrd)) = (kernel == Some(installer), &draft.initrd) {
        let what = "an initial RAM file system in place of the installer's, which would read the answers of `preseed`";
        mistakes.push(Mistake::new(initrd.place.clone(), what).expected("one of the two"));
        return None;
    }
    if kernel != Some(installer) && !draft.kernel_unreadable {
        let what = "answers for Debian's installer have no effect on another kernel";
        mistakes.push(wrong(given, what).expected(format!("kernel = \"{installer}\" in the same [[vm]]")));
        return None;
    }
    file(given, "preseed file", "a file with answers, such as `d-i netcfg/get_hostname string web`", &[], folder, mistakes)
        .map(InitrdSource::Answered)
}

/// The path of an existing file.
pub fn file(
    given: &Given<String>,
    what: &str,
    expected: &str,
    words: &[&str],
    folder: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<PathBuf> {
    // A flag's path is relative to the current folder, not to the file's.
    let path = match given.place {
        Place::Flag(_) => Path::new(&given.value).to_owned(),
        _ => folder.join(&given.value),
    };
    let problem = match path.metadata() {
        _ if given.value.is_empty() => format!("the {what}'s path is empty"),
        Ok(metadata) if metadata.is_file() => return Some(path),
        Ok(_) => format!("the {what} \"{}\" is not a file", given.value),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            format!("the {what} \"{}\" is not there", given.value)
        }
        Err(error) => format!("the {what} \"{}\" can't be read: {error}", given.value),
    };
    let mistake = wrong(given, problem).expected(expected);
    let beside = file_like(&path).and_then(|similar| {
        let similar = Path::new(&similar).file_name()?.to_str()?;
        Some(Path::new(&given.value).with_file_name(similar).display().to_string())
    });
    mistakes.push(match beside {
        Some(similar) => mistake.similar(similar),
        None => mistake.similar_among(&given.value, words.iter().copied()),
    });
    None
}

/// A PCI function's address. Functions behind bridges are not reached.
pub fn function(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Address> {
    let text = &given.value;
    let what = match text.parse::<Address>() {
        Ok(address) if address.bus() == 0 => return Some(address),
        Ok(address) => format!("function {address} is behind a bridge, where functions can't be assigned yet"),
        Err(ParseError::Segment) => {
            format!("function \"{text}\" is in another PCI segment than 0000, where functions can't be assigned yet")
        }
        Err(ParseError::Range) => format!("\"{text}\" has a device above 1f or a function above 7"),
        Err(ParseError::Form) => format!("\"{text}\" is not the address of a PCI function"),
    };
    mistakes.push(wrong(given, what).expected("an address on bus 0, such as \"0000:00:02.0\""));
    None
}
