//! Valid values of settings. Each function reports an invalid value and returns none.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use stile_blob::{
    Ablation, ApicVirtualization, BinaryPoint, CpuClass, DecodeCache, Interrupts, IpiAccess, MAX_NAME_LEN, Mitigations, Nested, OnReset,
    Share, TimerAccess, is_name,
};
use stile_board::{CpuId, CpuSet, map};

use crate::draft::{Cpus, Given};
use crate::{Mistake, Place, ablation, units};

/// A mistake of a value.
pub fn wrong<T>(given: &Given<T>, what: impl Into<String>) -> Mistake {
    Mistake::new(given.place.clone(), what)
}

/// A time slice.
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

/// The machine's memory in bytes.
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

/// A VM's RAM in bytes.
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

/// A VM's name.
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

/// The effect of a reset.
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

/// A mode of nesting.
pub fn nested(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Nested> {
    one_of(given, "unknown nesting mode", &Nested::WORDS, mistakes)
}

/// A set of mitigations.
pub fn mitigations(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Mitigations> {
    one_of(given, "unknown set of mitigations", &Mitigations::WORDS, mistakes)
}

/// A scheme of the cache of decoded instructions.
pub fn decode_cache(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<DecodeCache> {
    one_of(given, "unknown decode cache scheme", &DecodeCache::WORDS, mistakes)
}

/// A binary point.
pub fn binary_point(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<BinaryPoint> {
    one_of(given, "unknown binary point", &BinaryPoint::WORDS, mistakes)
}

/// Access to the local APIC's timer.
pub fn timer(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<TimerAccess> {
    one_of(given, "there is no access to the timer called", &TimerAccess::WORDS, mistakes)
}

/// Access to interprocessor interrupts.
pub fn ipi(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<IpiAccess> {
    one_of(given, "there is no access to interprocessor interrupts called", &IpiAccess::WORDS, mistakes)
}

/// A delivery of interrupts.
pub fn interrupts(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<Interrupts> {
    one_of(given, "there is no delivery of interrupts called", &Interrupts::WORDS, mistakes)
}

/// A level of APIC virtualization.
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
