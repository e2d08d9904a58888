//! Parses the text of a TOML file into a draft: the file's schema, and the types of its values.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Range;

use toml::de::{DeTable, DeValue};
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

use crate::{
    Mistake, Place, ablation,
    draft::{Cpus, DiskDraft, DomainDraft, Draft, FolderDraft, FunctionDraft, Given, NetworkDraft, ServedDraft, VmDraft},
    table::{Table, integer, wrong_type},
    value,
};

/// Number of syntax errors that are shown: one mistake causes further ones, and a file that is not TOML at all has one in each line.
const SYNTAX_ERRORS_SHOWN: usize = 3;

/// Tables and arrays inside each other, in which a key's dots count, too: more than any setting has. Readers recurse, and a
/// booting Stile has little stack.
const MAX_NESTING: usize = 16;

const TOP_KEYS: &[&str] = &["machine", "vm"];
const MACHINE_KEYS: &[&str] = &["arch", "cpu", "cpus", "gic", "memory", "mitigations", "nodes", "slice"];
const VM_KEYS: &[&str] = &[
    "append",
    "budget",
    "cap",
    "cpus",
    "disk",
    "domain",
    "exec",
    "initrd",
    "kernel",
    "memory",
    "name",
    "nested",
    "net",
    "on_reset",
    "pci",
    "pinned",
    "preseed",
    "served",
    "share",
    "techniques",
    "topology",
    "vcpus",
    "weight",
];
const BUDGET_KEYS: &[&str] = &["exit_time", "exits_per_second"];
const DOMAIN_KEYS: &[&str] = &["append", "kernel", "memory", "vcpus"];
const FUNCTION_KEYS: &[&str] = &["function"];
const DISK_KEYS: &[&str] = &["file", "format", "in_memory", "readonly", "served"];
const FOLDER_KEYS: &[&str] = &["path", "readonly", "served", "tag"];
const SERVED_KEYS: &[&str] = &["by", "cid", "device", "folder", "forward"];
const NETWORK_KEYS: &[&str] = &["bridge", "forward", "served"];
const TECHNIQUE_KEYS: &[&str] =
    &["ablate", "apic_virtualization", "binary_point", "decode_cache", "interrupts", "ipi", "nested", "timer", "wfi_passthrough"];

/// Parses a draft; `None` if the text is not TOML at all.
pub fn draft(text: &str, mistakes: &mut Vec<Mistake>) -> Option<Draft> {
    if let Some(place) = too_deep(text) {
        mistakes
            .push(Mistake::new(Place::Text(place), "tables and arrays are nested too deeply").expected(format!("{MAX_NESTING} at most")));
        return None;
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // Values recovered from broken syntax would only cause spurious mistakes.
        mistakes.extend(errors.iter().take(SYNTAX_ERRORS_SHOWN).map(|error| syntax(text, error)));
        return None;
    }
    let mut draft = Draft::default();
    let mut top = Table::new("the file", document.get_ref(), TOP_KEYS, mistakes);
    if let Some((machine, _)) = top.table("machine", "[machine]", mistakes) {
        let mut machine = Table::new("[machine]", machine, MACHINE_KEYS, mistakes);
        draft.arch = machine.string("arch", "\"aarch64\" or \"x86_64\"", mistakes);
        draft.cpu = machine.string("cpu", "a string such as \"max\"", mistakes);
        draft.cpus = machine.integer("cpus", mistakes);
        draft.nodes = machine.integer("nodes", mistakes);
        draft.memory = machine.size("memory", "a string such as \"2G\"", mistakes);
        draft.slice = machine.string("slice", "a string such as \"5ms\"", mistakes);
        draft.gic = machine.integer("gic", mistakes);
        draft.mitigations = machine.string("mitigations", "\"auto\", \"off\" or \"all\"", mistakes);
    }
    for (vm, span) in vms(&mut top, document.span(), mistakes)? {
        draft.vms.push(vm_draft(vm, span, mistakes));
    }
    Some(draft)
}

/// The first token that is nested too deeply.
fn too_deep(text: &str) -> Option<Range<usize>> {
    let (mut brackets, mut dots) = (0_usize, 0_usize);
    for token in Source::new(text).lex() {
        match token.kind() {
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => brackets += 1,
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => brackets = brackets.saturating_sub(1),
            TokenKind::Dot => dots += 1,
            TokenKind::Newline if brackets == 0 => dots = 0,
            _ => {}
        }
        if brackets + dots > MAX_NESTING {
            return Some(token.span().start()..token.span().end());
        }
    }
    None
}

/// Returns a mistake in the syntax, with the parser's message if it is helpful.
fn syntax(text: &str, error: &toml::de::Error) -> Mistake {
    let Some(span) = error.span() else {
        return Mistake::new(Place::File, error.message());
    };
    let place = Place::Text(span.clone());
    let word = text.get(span.clone()).unwrap_or_default();
    let after_equals = text.get(..span.start).is_some_and(|before| before.trim_end_matches([' ', '\t']).ends_with('='));
    // The parser takes a word without quotes for a number.
    if after_equals && word.starts_with(|c: char| c.is_alphabetic() || "./~_".contains(c)) {
        let word = word.trim();
        return Mistake::new(place, format!("{word} is not a value")).expected("text in quotes, a number, true or false").similar(word);
    }
    Mistake::new(place, error.message().trim().replace('\n', "; "))
}

/// The tables of the virtual machines, each with its place in the text.
fn vms<'t>(top: &mut Table<'t>, document: Range<usize>, mistakes: &mut Vec<Mistake>) -> Option<Vec<(&'t DeTable<'t>, Range<usize>)>> {
    let wanted = "a table [[vm]] for each virtual machine";
    let Some(value) = top.get("vm") else {
        // Another key may be a misspelt one; then this is not reported.
        if mistakes.is_empty() {
            let place = if document.is_empty() { Place::File } else { Place::Text(0..0) };
            mistakes.push(Mistake::new(place, "there is no virtual machine").expected(wanted));
        }
        return None;
    };
    let DeValue::Array(array) = value.get_ref() else {
        let mistake = wrong_type("vm", value, wanted);
        mistakes.push(if value.get_ref().is_table() { mistake.similar("[[vm]]") } else { mistake });
        return None;
    };
    let mut vms = Vec::new();
    for element in array.iter() {
        match element.get_ref() {
            DeValue::Table(table) => vms.push((table, element.span())),
            _ => mistakes.push(wrong_type("vm", element, wanted)),
        }
    }
    if array.is_empty() {
        mistakes.push(Mistake::new(Place::Text(value.span()), "there is no virtual machine").expected(wanted));
    }
    Some(vms)
}

fn vm_draft(vm: &DeTable<'_>, span: Range<usize>, mistakes: &mut Vec<Mistake>) -> VmDraft {
    let mut vm = Table::new("[[vm]]", vm, VM_KEYS, mistakes);
    let mut draft = VmDraft::new(Place::Text(span));
    draft.kernel_unreadable = vm.get("kernel").is_some_and(|value| !value.get_ref().is_str()) || vm.has_key_like("kernel");
    draft.name = vm.string("name", "a string such as \"guest\"", mistakes);
    draft.kernel = vm.string("kernel", "a path, or a word such as \"debian\"", mistakes);
    draft.initrd = vm.string("initrd", "a path, \"busybox\" or \"none\"", mistakes);
    draft.preseed = vm.string("preseed", "the path of a file", mistakes);
    draft.append = vm.string("append", "the kernel's command line in one string", mistakes);
    draft.memory = vm.size("memory", "a string such as \"512M\"", mistakes);
    draft.vcpus = vm.integer("vcpus", mistakes);
    draft.topology = vm.string("topology", "sockets, cores and threads in a string, such as \"1x4x2\"", mistakes);
    draft.cpus = cpus(&mut vm, mistakes);
    draft.pinned = vm.boolean("pinned", mistakes);
    draft.weight = vm.integer("weight", mistakes);
    draft.cap = vm.string("cap", "a percentage of one CPU in a string, such as \"150%\"", mistakes);
    draft.nested = vm.boolean("nested", mistakes);
    draft.on_reset = vm.string("on_reset", "\"restart\", \"restart:N\" or \"stop\"", mistakes);
    draft.exec = vm.string("exec", "a shell command in one string", mistakes);
    if let Some((budget, _)) = vm.table("budget", "[vm.budget]", mistakes) {
        let mut budget = Table::new("[vm.budget]", budget, BUDGET_KEYS, mistakes);
        draft.exits_per_second = budget.integer("exits_per_second", mistakes);
        draft.exit_time = budget.string("exit_time", "a percentage of one CPU in a string, such as \"1%\"", mistakes);
    }
    if let Some((techniques, _)) = vm.table("techniques", "[vm.techniques]", mistakes) {
        let mut techniques = Table::new("[vm.techniques]", techniques, TECHNIQUE_KEYS, mistakes);
        let levels = "\"posted\", \"delivery\", \"registers\" or \"off\"";
        draft.apic_virtualization = techniques.string("apic_virtualization", levels, mistakes);
        draft.binary_point = techniques.string("binary_point", "\"auto\", \"common\" or \"own\"", mistakes);
        draft.decode_cache = techniques.string("decode_cache", "\"verify\", \"protect\" or \"off\"", mistakes);
        draft.nested_way = techniques.string("nested", "\"nv2\", \"nv\", \"enlightened\" or \"off\"", mistakes);
        draft.interrupts = techniques.string("interrupts", "\"direct\" or \"virtual\"", mistakes);
        draft.timer = techniques.string("timer", "\"passthrough\", \"direct\" or \"trapped\"", mistakes);
        draft.ipi = techniques.string("ipi", "\"trapped\" or \"direct\"", mistakes);
        draft.wfi_passthrough = techniques.boolean("wfi_passthrough", mistakes);
        draft.ablate = techniques.strings("ablate", &format!("a list of {}", ablation::list()), mistakes);
    }
    draft.domains = domains(&vm, mistakes);
    draft.functions = functions(&vm, mistakes);
    draft.disks = disks(&vm, mistakes);
    draft.networks = networks(&vm, mistakes);
    draft.folders = folders(&vm, mistakes);
    draft.served = served(&vm, mistakes);
    draft
}

/// Parses the tables of domains that a virtual machine starts.
fn domains(vm: &Table<'_>, mistakes: &mut Vec<Mistake>) -> Vec<DomainDraft> {
    tables(vm, "domain", "[[vm.domain]]", mistakes)
        .into_iter()
        .map(|(table, span)| {
            let mut domain = Table::new("[[vm.domain]]", table, DOMAIN_KEYS, mistakes);
            DomainDraft {
                place: Place::Text(span),
                kernel: domain.string("kernel", "a path", mistakes),
                append: domain.string("append", "the kernel's command line in one string", mistakes),
                memory: domain.size("memory", "a string such as \"64M\"", mistakes),
                vcpus: domain.integer("vcpus", mistakes),
            }
        })
        .collect()
}

/// Parses the tables of PCI functions that a virtual machine owns.
fn functions(vm: &Table<'_>, mistakes: &mut Vec<Mistake>) -> Vec<FunctionDraft> {
    tables(vm, "pci", "[[vm.pci]]", mistakes)
        .into_iter()
        .map(|(table, span)| {
            let mut function = Table::new("[[vm.pci]]", table, FUNCTION_KEYS, mistakes);
            let wanted = "an address such as \"0000:00:02.0\"";
            FunctionDraft { place: Place::Text(span), function: function.string("function", wanted, mistakes) }
        })
        .collect()
}

/// Parses the tables of a virtual machine's disks.
fn disks(vm: &Table<'_>, mistakes: &mut Vec<Mistake>) -> Vec<DiskDraft> {
    tables(vm, "disk", "[[vm.disk]]", mistakes)
        .into_iter()
        .map(|(table, span)| {
            let mut disk = Table::new("[[vm.disk]]", table, DISK_KEYS, mistakes);
            DiskDraft {
                place: Place::Text(span),
                file: disk.string("file", "a path", mistakes),
                read_only: disk.boolean("readonly", mistakes).is_some_and(|given| given.value),
                format: disk.string("format", "\"qcow2\" or \"raw\"", mistakes),
                served: disk.boolean("served", mistakes).is_some_and(|given| given.value),
                in_memory: disk.boolean("in_memory", mistakes).is_some_and(|given| given.value),
            }
        })
        .collect()
}

/// Parses the tables of a virtual machine's networks.
fn networks(vm: &Table<'_>, mistakes: &mut Vec<Mistake>) -> Vec<NetworkDraft> {
    tables(vm, "net", "[[vm.net]]", mistakes)
        .into_iter()
        .map(|(table, span)| {
            let mut network = Table::new("[[vm.net]]", table, NETWORK_KEYS, mistakes);
            NetworkDraft {
                place: Place::Text(span),
                forwards: network.strings("forward", "a list such as [\"2222:22\"]", mistakes).unwrap_or_default(),
                bridge: network.string("bridge", "a name such as \"lan0\"", mistakes),
                served: network.boolean("served", mistakes).is_some_and(|given| given.value),
            }
        })
        .collect()
}

/// Parses the tables of folders that a virtual machine shares.
fn folders(vm: &Table<'_>, mistakes: &mut Vec<Mistake>) -> Vec<FolderDraft> {
    tables(vm, "share", "[[vm.share]]", mistakes)
        .into_iter()
        .map(|(table, span)| {
            let mut folder = Table::new("[[vm.share]]", table, FOLDER_KEYS, mistakes);
            FolderDraft {
                place: Place::Text(span),
                path: folder.string("path", "a path", mistakes),
                read_only: folder.boolean("readonly", mistakes).is_some_and(|given| given.value),
                tag: folder.string("tag", "a name such as \"src\"", mistakes),
                served: folder.boolean("served", mistakes).is_some_and(|given| given.value),
            }
        })
        .collect()
}

/// Parses the tables of devices that other virtual machines serve.
fn served(vm: &Table<'_>, mistakes: &mut Vec<Mistake>) -> Vec<ServedDraft> {
    tables(vm, "served", "[[vm.served]]", mistakes)
        .into_iter()
        .map(|(table, span)| {
            let mut served = Table::new("[[vm.served]]", table, SERVED_KEYS, mistakes);
            ServedDraft {
                place: Place::Text(span),
                device: served.string("device", "a type such as \"block\"", mistakes),
                by: served.string("by", "the name of a virtual machine", mistakes),
                cid: served.integer("cid", mistakes),
                folder: served.string("folder", "a path", mistakes),
                forwards: served.strings("forward", "a list such as [\"2222:22\"]", mistakes).unwrap_or_default(),
            }
        })
        .collect()
}

/// The tables of an array in a virtual machine's, each with its place in the text.
fn tables<'t>(vm: &Table<'t>, key: &'static str, header: &str, mistakes: &mut Vec<Mistake>) -> Vec<(&'t DeTable<'t>, Range<usize>)> {
    let wanted = format!("a table {header} for each");
    let Some(value) = vm.get(key) else { return Vec::new() };
    let DeValue::Array(array) = value.get_ref() else {
        mistakes.push(wrong_type(key, value, &wanted).similar(header));
        return Vec::new();
    };
    let mut found = Vec::new();
    for element in array.iter() {
        match element.get_ref() {
            DeValue::Table(table) => found.push((table, element.span())),
            _ => mistakes.push(wrong_type(key, element, &wanted)),
        }
    }
    found
}

fn cpus(vm: &mut Table<'_>, mistakes: &mut Vec<Mistake>) -> Option<Given<Cpus>> {
    let wanted = value::CPUS;
    let value = vm.get("cpus")?;
    let place = Place::Text(value.span());
    match value.get_ref() {
        DeValue::String(text) => Some(Given::new(Cpus::Text(text.to_string()), place)),
        DeValue::Array(array) => {
            let before = mistakes.len();
            let list = array.iter().filter_map(|cpu| integer("cpus", cpu, wanted, mistakes)).collect();
            (mistakes.len() == before).then(|| Given::new(Cpus::List(list), place))
        }
        DeValue::Integer(number) => {
            mistakes.push(wrong_type("cpus", value, wanted).similar(format!("[{number}]")));
            None
        }
        _ => {
            mistakes.push(wrong_type("cpus", value, wanted));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Option<alloc::string::String> {
        let mut mistakes = Vec::new();
        draft(text, &mut mistakes);
        mistakes.first().map(Mistake::message)
    }

    #[test]
    fn nesting_is_limited() {
        let too_deep = "tables and arrays are nested too deeply; expected 16 at most";
        let arrays = |depth: usize| format!("a = {}{}\n[[vm]]\n", "[".repeat(depth), "]".repeat(depth));
        let keys = |depth: usize| format!("{} = 1\n[[vm]]\n", ["a"; 20][..depth].join("."));
        for text in [arrays(17), arrays(30_000), keys(18), "[".repeat(60_000), "a=[1.5,\n".repeat(20)] {
            assert_eq!(message(&text).as_deref(), Some(too_deep));
        }
        for text in [arrays(16), keys(17), "[[vm]]\na.b.c = 1\n".repeat(20)] {
            assert!(message(&text).is_some_and(|message| message.starts_with("unknown key")));
        }
    }
}
