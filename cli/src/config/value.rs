//! Valid values of settings. Each function reports an invalid value and returns none.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use stile_blob::{
    Ablation, ApicVirtualization, BinaryPoint, CpuClass, DecodeCache, Interrupts, IpiAccess, MAX_NAME_LEN, Mitigations, Nested, OnReset,
    Share, TimerAccess, is_name,
};
use stile_board::{CpuId, CpuSet, map};
use stile_pci::{Address, ParseError};

use super::{
    Arch, DebianKernel, Flags, InitrdSource, KernelSource, MachineConfig, Mistake, Place, ablation,
    draft::{Cpus, Given, VmDraft},
    mistake::file_like,
    units,
};

fn wrong<T>(given: &Given<T>, what: impl Into<String>) -> Mistake {
    Mistake::new(given.place.clone(), what)
}

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

pub fn slice(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Duration> {
    let range = Duration::from_micros(100)..=Duration::from_secs(1);
    let expected = "a duration from \"100us\" to \"1s\"";
    match units::parse_duration(&given.value) {
        Some(slice) if range.contains(&slice) => return Some(slice),
        Some(_) => mistakes.push(wrong(given, format!("the slice {} is out of range", given.value)).expected(expected)),
        None => {
            let mistake = wrong(given, format!("\"{}\" is not a duration", given.value)).expected(expected);
            let guesses = ["s", "ms"].map(|unit| format!("{}{unit}", given.value));
            let guess = guesses.into_iter().find(|guess| units::parse_duration(guess).is_some_and(|slice| range.contains(&slice)));
            mistakes.push(match guess {
                Some(guess) => mistake.similar(guess),
                None => mistake,
            });
        }
    }
    None
}

/// A whole number from `least` to `most`.
pub fn number(given: &Given<i64>, of: &str, least: usize, most: usize, mistakes: &mut Vec<Mistake>) -> Option<usize> {
    match usize::try_from(given.value) {
        Ok(value) if (least..=most).contains(&value) => Some(value),
        _ => {
            let what = format!("{} is out of range for the number of {of}", given.value);
            mistakes.push(wrong(given, what).expected(format!("{least} to {most}")));
            None
        }
    }
}

/// A VM's weight.
pub fn weight(given: &Given<i64>, mistakes: &mut Vec<Mistake>) -> Option<u16> {
    let weight = u16::try_from(given.value).ok().filter(|weight| (1..=Share::MAX_WEIGHT).contains(weight));
    if weight.is_none() {
        let mistake = wrong(given, format!("the weight {} is out of range", given.value));
        mistakes.push(mistake.expected(format!("1 to {}; a VM that is not given one has {}", Share::MAX_WEIGHT, Share::default().weight)));
    }
    weight
}

/// A VM's cap, in percent of one CPU.
pub fn cap(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<u16> {
    let expected = format!("a percentage of one CPU from \"1%\" to \"{}%\"", Share::MAX_CAP);
    let range = 1..=Share::MAX_CAP;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match given.value.strip_suffix('%').and_then(number) {
        Some(percent) => {
            let cap = u16::try_from(percent).ok().filter(|cap| range.contains(cap));
            if cap.is_none() {
                mistakes.push(wrong(given, format!("the cap {} is out of range", given.value)).expected(expected));
            }
            cap
        }
        None => {
            let mistake = wrong(given, format!("\"{}\" is not a percentage", given.value)).expected(expected);
            mistakes.push(match number(&given.value).filter(|&number| number <= u64::from(Share::MAX_CAP)) {
                Some(number) => mistake.similar(format!("{number}%")),
                None => mistake,
            });
            None
        }
    }
}

fn size(given: &Given<String>, expected: &str, mistakes: &mut Vec<Mistake>) -> Option<u64> {
    let size = units::parse_size(&given.value);
    if size.is_none() {
        let mistake = wrong(given, format!("\"{}\" is not a size", given.value)).expected(expected);
        let megabytes = given.value.strip_suffix('B').unwrap_or(&given.value);
        let guesses = [megabytes.to_owned(), format!("{megabytes}M")];
        let guess = guesses.into_iter().find(|guess| units::parse_size(guess).is_some_and(|size| size > 0));
        mistakes.push(match guess {
            Some(guess) => mistake.similar(guess),
            None => mistake,
        });
    }
    size
}

pub fn machine_memory(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<u64> {
    let expected = "a whole number with K, M, G or T, such as \"2G\"";
    let memory = size(given, expected, mistakes)?;
    if memory % (1 << 20) == 0 && memory <= map::RAM_MAX {
        return Some(memory);
    }
    let expected = format!("whole mebibytes, at most {}", units::size(map::RAM_MAX));
    mistakes.push(wrong(given, format!("the machine can't have {} of memory", given.value)).expected(expected));
    None
}

pub fn vm_memory(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<u64> {
    let expected = "a whole number with K, M, G or T, such as \"512M\"";
    let memory = size(given, expected, mistakes)?;
    if map::is_ram_size(memory) {
        return Some(memory);
    }
    let granule = units::size(map::RAM_GRANULE);
    let expected = format!("a multiple of {granule}, from {granule} to {}", units::size(map::RAM_MAX));
    let mistake = wrong(given, format!("a virtual machine can't have {} of memory", given.value)).expected(expected);
    let rounded = memory.max(1).checked_next_multiple_of(map::RAM_GRANULE);
    mistakes.push(match rounded.filter(|&rounded| map::is_ram_size(rounded)) {
        Some(rounded) => mistake.similar(units::size(rounded)),
        None => mistake,
    });
    None
}

pub fn vm_name(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<String> {
    if is_name(&given.value) {
        return Some(given.value.clone());
    }
    let what = format!("\"{}\" can't be a name", given.value);
    let mistake = wrong(given, what).expected(format!("1 to {MAX_NAME_LEN} of a to z, 0 to 9 and -"));
    let plain: String = given.value.to_lowercase().chars().map(|c| if "_. ".contains(c) { '-' } else { c }).collect();
    mistakes.push(if is_name(&plain) { mistake.similar(plain) } else { mistake });
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
        if let (false, [_, ..]) = (draft.kernel_unreadable, &draft.disks[..]) {
            return Some(KernelSource::Disk);
        }
        if !draft.kernel_unreadable {
            let what = "this virtual machine has no kernel";
            mistakes.push(Mistake::new(draft.place.clone(), what).expected(format!("kernel = a path, \"stile\", or one of {words_shown}")));
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

/// Values that [`cpus`] accepts.
pub const CPUS: &str = "CPU numbers such as [0, 1] or \"0-3\", or a class of CPUs: \"big\", \"little\", \"class 0\"";

/// Physical CPUs by number, or a class of them and no numbers.
pub fn cpus(given: &Given<Cpus>, limit: u32, mistakes: &mut Vec<Mistake>) -> Option<(CpuSet, Option<CpuClass>)> {
    let expected = CPUS;
    if let Cpus::Text(text) = &given.value
        && let Some(class) = cpu_class(text)
    {
        return Some((CpuSet::EMPTY, Some(class)));
    }
    let list: Vec<(i64, Place)> = match &given.value {
        Cpus::List(list) => list.iter().map(|cpu| (cpu.value, cpu.place.clone())).collect(),
        Cpus::Text(text) => match units::parse_cpus(text) {
            Some(list) => list.into_iter().map(|cpu| (i64::try_from(cpu).unwrap_or(i64::MAX), given.place.clone())).collect(),
            None => {
                let what = format!("\"{text}\" is not a list of CPUs");
                mistakes.push(wrong(given, what).expected(expected).similar_among(text, ["big", "little"]));
                return None;
            }
        },
    };
    let before = mistakes.len();
    let mut set = CpuSet::EMPTY;
    let there = match limit {
        1 => "0, the only one".to_owned(),
        _ => format!("0 to {}", limit - 1),
    };
    for (cpu, place) in &list {
        match usize::try_from(*cpu).ok().filter(|&cpu| cpu < limit as usize).and_then(CpuId::new) {
            Some(cpu) => set.set(cpu, true),
            // One report per range is sufficient.
            _ if mistakes.len() > before && matches!(given.value, Cpus::Text(_)) => {}
            _ => mistakes.push(Mistake::new(place.clone(), format!("there is no CPU {cpu}")).expected(&there)),
        }
    }
    if list.is_empty() {
        mistakes.push(wrong(given, "there is no CPU in the list").expected(expected));
    }
    (mistakes.len() == before).then_some((set, None))
}

/// A class of CPUs by its word or number.
fn cpu_class(text: &str) -> Option<CpuClass> {
    match text {
        "big" => Some(CpuClass::Nth(0)),
        "little" => Some(CpuClass::Last),
        _ => text.strip_prefix("class ")?.parse().ok().map(CpuClass::Nth),
    }
}

pub fn on_reset(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<OnReset> {
    let most = given.value.strip_prefix("restart:").and_then(|most| most.parse().ok());
    match (&given.value[..], most) {
        ("restart", _) => Some(OnReset::Restart),
        ("stop", _) => Some(OnReset::Stop),
        (_, Some(most @ 1..)) => Some(OnReset::RestartAtMost(most)),
        (other, _) => {
            let what = format!("\"{other}\" is not a reset action");
            let mistake = wrong(given, what).expected("\"restart\", \"restart:N\" (N times, at least 1) or \"stop\"");
            mistakes.push(mistake.similar_among(other, ["restart", "stop"]));
            None
        }
    }
}

pub fn nested(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Nested> {
    one_of(given, "unknown nesting mode", &Nested::WORDS, mistakes)
}

pub fn mitigations(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Mitigations> {
    one_of(given, "unknown set of mitigations", &Mitigations::WORDS, mistakes)
}

pub fn decode_cache(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<DecodeCache> {
    one_of(given, "unknown decode cache scheme", &DecodeCache::WORDS, mistakes)
}

pub fn binary_point(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<BinaryPoint> {
    one_of(given, "unknown binary point", &BinaryPoint::WORDS, mistakes)
}

pub fn timer(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<TimerAccess> {
    one_of(given, "there is no access to the timer called", &TimerAccess::WORDS, mistakes)
}

pub fn ipi(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<IpiAccess> {
    one_of(given, "there is no access to interprocessor interrupts called", &IpiAccess::WORDS, mistakes)
}

pub fn interrupts(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Interrupts> {
    one_of(given, "there is no delivery of interrupts called", &Interrupts::WORDS, mistakes)
}

pub fn apic_virtualization(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<ApicVirtualization> {
    one_of(given, "unknown level of APIC virtualization", &ApicVirtualization::WORDS, mistakes)
}

/// A word out of a few, in ascending order of effect.
fn one_of<T: Copy>(given: &Given<String>, none: &str, words: &[(&'static str, T)], mistakes: &mut Vec<Mistake>) -> Option<T> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == given.value) {
        return Some(*value);
    }
    let names = || words.iter().map(|(word, _)| *word);
    let expected = names().rev().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
    mistakes.push(
        wrong(given, format!("{none} \"{}\"", given.value)).expected(format!("one of {expected}")).similar_among(&given.value, names()),
    );
    None
}

/// Text that becomes a C string must not contain NUL.
pub fn no_nul(given: &Given<String>, mistakes: &mut Vec<Mistake>) {
    if given.value.contains('\0') {
        mistakes.push(wrong(given, "the text has a NUL character in it").expected("none"));
    }
}

/// Every word enables an ablation.
pub fn ablation(given: &[Given<String>], mistakes: &mut Vec<Mistake>) -> Ablation {
    let mut all = Ablation::default();
    for name in given {
        if !ablation::switch_on(&mut all, &name.value) {
            let mistake = wrong(name, format!("\"{}\" can't be ablated", name.value)).expected(format!("some of {}", ablation::list()));
            mistakes.push(mistake.similar_among(&name.value, ablation::names()));
        }
    }
    all
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
