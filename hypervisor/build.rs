//! Gives the linker the image's layout, for bare-metal targets only, and makes the exit path that records a trace out of the one that does not.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

/// The files of each exit path, in the order in which they are assembled.
const EXIT_PATHS: [(&str, &[&str]); 2] =
    [("aarch64", &["exit/exit.S", "nested/exit.S", "exit/direct.S"]), ("x86_64", &["exit/exit.S", "exit/mitigated.S"])];

/// Tables of stubs in `exit/mod.rs`, which the recording path has of its own.
const TABLES: [&str; 3] = ["SYNCHRONOUS_STUBS", "DIRECT_STUBS", "EXIT_STUBS"];

/// Before every name of the recording path; and of its tables.
const PREFIX: &str = "traced_";
const TABLE_PREFIX: &str = "TRACED_";

/// Begins a line that only the recording path has.
const MARK: &str = "//@traced";

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
    for (name, files) in EXIT_PATHS.iter().filter(|(name, _)| *name == arch) {
        let source = files.iter().map(|file| {
            let path = Path::new(&dir).join("src/arch").join(name).join(file);
            println!("cargo:rerun-if-changed={}", path.display());
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        });
        let source = source.collect::<Vec<_>>().join("\n");
        fs::write(Path::new(&out).join("traced.S"), traced(&source)).expect("OUT_DIR can be written");
    }
}

/// The exit path with other names for all that it defines, and with the lines that record.
fn traced(source: &str) -> String {
    let mut names: BTreeSet<&str> = source.lines().filter_map(defined).collect();
    names.extend(TABLES);
    let lines = source.replace(MARK, "");
    let mut out = String::new();
    let mut rest = lines.as_str();
    while let Some(start) = rest.find(is_of_name) {
        let end = rest[start..].find(|char| !is_of_name(char)).map_or(rest.len(), |length| start + length);
        let name = &rest[start..end];
        out.push_str(&rest[..start]);
        if names.contains(name) {
            out.push_str(if TABLES.contains(&name) { TABLE_PREFIX } else { PREFIX });
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
