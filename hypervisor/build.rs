//! Gives the linker the image's layout, for bare-metal targets only, and makes further exit paths out of the plain one: with the lines that
//! record a trace, and with those that clear the guest's registers.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

/// The files of each exit path, in the order in which they are assembled: the architecture, whether with AMD-V, and the files.
const EXIT_PATHS: [(&str, bool, &[&str]); 3] = [
    ("aarch64", false, &["exit/exit.S", "nested/exit.S", "exit/direct.S"]),
    ("x86_64", false, &["vmx/exit/exit.S", "vmx/exit/mitigated.S"]),
    ("x86_64", true, &["svm/exit.S"]),
];

/// Tables of stubs of `exit`, of which each path has its own.
const TABLES: [&str; 3] = ["SYNCHRONOUS_STUBS", "DIRECT_STUBS", "EXIT_STUBS"];

/// Begins a line that only the recording paths have.
const TRACED: &str = "//@traced";
/// Begins a line that only the clearing paths have.
const CLEARED: &str = "//@cleared";

/// Further exit paths of all architectures together: the file, the prefix of its names (in capitals for tables), and
/// the marks of the lines that it has.
const VARIANTS: [(&str, &str, &[&str]); 3] = [
    ("traced.S", "traced_", &[TRACED]),
    ("cleared.S", "cleared_", &[CLEARED]),
    ("cleared_traced.S", "cleared_traced_", &[CLEARED, TRACED]),
];

fn main() {
    println!("cargo:rerun-if-changed=image-aarch64.ld");
    println!("cargo:rerun-if-changed=image-x86_64.ld");
    println!("cargo:rerun-if-changed=build.rs");
    let dir = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        println!("cargo:rustc-link-arg-bins=-T{dir}/image-{arch}.ld");
        println!("cargo:rustc-link-arg-bins=--no-dynamic-linker");
        println!("cargo:rustc-link-arg-bins=-zmax-page-size=4096");
        println!("cargo:rustc-link-arg-bins=--orphan-handling=warn");
    }
    let with_svm = env::var_os("CARGO_FEATURE_SVM").is_some();
    for (name, _, files) in EXIT_PATHS.iter().filter(|(name, svm, _)| *name == arch && *svm == with_svm) {
        let source = files.iter().map(|file| {
            let path = Path::new(&dir).join("src/arch").join(name).join(file);
            println!("cargo:rerun-if-changed={}", path.display());
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        });
        let source = source.collect::<Vec<_>>().join("\n");
        for (file, prefix, marks) in VARIANTS {
            fs::write(Path::new(&out).join(file), variant(&source, prefix, marks)).expect("OUT_DIR can be written");
        }
    }
}

/// The exit path with `prefix` before all names that it defines, and with the lines that have one of the marks.
fn variant(source: &str, prefix: &str, marks: &[&str]) -> String {
    let lines = marks.iter().fold(source.to_owned(), |lines, mark| lines.replace(mark, ""));
    let mut names: BTreeSet<&str> = lines.lines().filter_map(defined).collect();
    names.extend(TABLES);
    let table_prefix = prefix.to_uppercase();
    let mut out = String::new();
    let mut rest = lines.as_str();
    while let Some(start) = rest.find(is_of_name) {
        let end = rest[start..].find(|char| !is_of_name(char)).map_or(rest.len(), |length| start + length);
        let name = &rest[start..end];
        out.push_str(&rest[..start]);
        if names.contains(name) {
            out.push_str(if TABLES.contains(&name) { &table_prefix } else { prefix });
        }
        out.push_str(name);
        rest = &rest[end..];
    }
    out + rest
}

fn is_of_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// The label or macro that a line defines.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split(|char: char| char.is_whitespace() || char == ',').filter(|word| !word.is_empty());
    let (first, second) = (words.next()?, words.next());
    let name = match first {
        ".macro" => second?,
        _ if first.starts_with("call_stub") || first == "vector_table" => second?,
        _ => first.strip_suffix(':')?,
    };
    let name = name.strip_prefix('.').unwrap_or(name);
    (name.chars().all(is_of_name) && !name.starts_with(|char: char| char.is_ascii_digit())).then_some(name)
}
