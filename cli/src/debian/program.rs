//! Programs of Debian's packages, with the shared libraries that they need: for systems without Debian's packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, read::elf::SectionHeader};

use super::tree;
use crate::config::Arch;

/// Folders of a tree's libraries: the loader, and the others.
const fn folders(arch: Arch) -> [&'static str; 2] {
    match arch {
        Arch::Aarch64 => ["usr/lib", "usr/lib/aarch64-linux-gnu"],
        Arch::X86_64 => ["usr/lib64", "usr/lib/x86_64-linux-gnu"],
    }
}

/// Files by their paths: some `programs` of a package of Debian's stable release, and their libraries.
///
/// # Errors
/// No mirror; no such package, program or library; a failed download.
pub fn programs(arch: Arch, package: &str, programs: &[&str]) -> Result<BTreeMap<String, Vec<u8>>> {
    let tree = tree::tree(arch, &[package])?;
    let mut files = BTreeMap::new();
    let mut wanted: Vec<String> = programs.iter().map(|path| (*path).to_owned()).collect();
    while let Some(path) = wanted.pop() {
        if files.contains_key(&path) {
            continue;
        }
        let bytes = fs::read(tree.join(&path)).with_context(|| format!("reading {path} of the package {package}"))?;
        for library in libraries(&bytes).with_context(|| format!("reading {path} of the package {package}"))? {
            wanted.push(find(&tree, arch, &library).with_context(|| format!("{path} needs {library}, which the package {package} lacks"))?);
        }
        files.insert(path, bytes);
    }
    Ok(files)
}

fn find(tree: &Path, arch: Arch, library: &str) -> Option<String> {
    folders(arch).into_iter().map(|folder| format!("{folder}/{library}")).find(|path| tree.join(path).exists())
}

/// Names of the libraries that a program or library needs, the loader included.
fn libraries(bytes: &[u8]) -> object::Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut names = Vec::new();
    for section in sections.iter() {
        let Some((entries, link)) = section.dynamic(endian, bytes)? else { continue };
        let strings = sections.strings(endian, bytes, link)?;
        for entry in entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
            names.push(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
        }
    }
    for segment in header.program_headers(endian, bytes)? {
        if let Some(path) = segment.interpreter(endian, bytes)? {
            let path = String::from_utf8_lossy(path).into_owned();
            names.extend(path.rsplit('/').next().map(str::to_owned));
        }
    }
    Ok(names)
}
