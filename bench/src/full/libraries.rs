//! Shared libraries of programs in a directory of unpacked packages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use stile::config::Arch;

/// Directories of libraries in Debian's packages. The dynamic linker is in both; programs refer to the first.
const fn directories(arch: Arch) -> [&'static str; 2] {
    match arch {
        Arch::Aarch64 => ["usr/lib", "usr/lib/aarch64-linux-gnu"],
        Arch::X86_64 => ["usr/lib64", "usr/lib/x86_64-linux-gnu"],
    }
}

/// Paths, relative to `tree`, of the dynamic linker and of all direct and indirect libraries of these programs.
///
/// # Errors
/// A program is not an ELF file; a library is missing.
pub fn of(arch: Arch, tree: &Path, programs: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut open: Vec<PathBuf> = programs.iter().map(PathBuf::from).collect();
    while let Some(path) = open.pop() {
        let file = std::fs::read(tree.join(&path)).with_context(|| format!("reading {}", path.display()))?;
        let names = needed(&file).with_context(|| format!("{} is a broken ELF file", path.display()))?;
        for name in names {
            let path = find(arch, tree, &name);
            let path = path.with_context(|| format!("a program or library needs {name}, which no package brings"))?;
            if found.insert(path.clone()) {
                open.push(path);
            }
        }
    }
    Ok(found)
}

/// The path of a library, relative to `tree`. Libraries that only one package uses are in a folder of their own, such as `ceph`, which that
/// package's files name (DT_RUNPATH).
fn find(arch: Arch, tree: &Path, name: &str) -> Option<PathBuf> {
    let directories = directories(arch).map(PathBuf::from);
    let inner = directories.iter().flat_map(|directory| std::fs::read_dir(tree.join(directory))).flatten().flatten();
    let inner = inner.filter_map(|entry| entry.path().strip_prefix(tree).ok().map(Path::to_owned));
    directories.iter().cloned().chain(inner).map(|directory| directory.join(name)).find(|path| tree.join(path).exists())
}

/// Returns the names of an ELF file's libraries and of its dynamic linker.
fn needed(file: &[u8]) -> object::Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let mut names = Vec::new();
    for program_header in header.program_headers(endian, file)? {
        if program_header.p_type(endian) == PT_INTERP
            && let Ok(path) = program_header.data(endian, file)
        {
            let path = String::from_utf8_lossy(path);
            names.extend(path.trim_end_matches('\0').rsplit('/').next().map(str::to_owned));
        }
    }
    let sections = header.sections(endian, file)?;
    if let Some((dynamic, link)) = sections.dynamic(endian, file)? {
        let strings = sections.strings(endian, file, link)?;
        for entry in dynamic.iter().filter(|entry| entry.tag(endian) == DT_NEEDED) {
            names.push(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
        }
    }
    Ok(names)
}
