//! Configuration of a machine: from a TOML file, from the command line, or from both.
//!
//! Reading has two steps. A file (`document`) and the command line ([`Flags`]) each yield a draft of
//! unchecked settings with their places. Resolving turns the draft into a [`MachineConfig`] in which every
//! value is checked and every default filled in, and reports all mistakes at once ([`Mistakes`]).

use std::fs;
use std::path::Path;

mod budget;
mod cids;
mod consoles;
pub mod devices;
mod file_like;
mod flags;
mod folders;
mod gic;
mod machine;
pub mod memory_disks;
mod resolve;
pub mod served;
pub mod service;
#[cfg(test)]
mod tests;
mod topology;
mod value;

use file_like::file_like;
pub use flags::Flags;
pub use machine::{
    Arch, DebianKernel, DomainConfig, InitrdSource, KernelSource, MAX_DOMAINS, MAX_NODES, MachineConfig, RESERVED, VmConfig,
};
pub use stile_config::{Look, Mistake, Mistakes, Place, ablation, similar, units};
use stile_config::{document, draft, utf8};

impl MachineConfig {
    /// Reads the configuration from `file`, from the command line's `flags`, or from both: flags for a
    /// virtual machine then override the settings of the file's only one.
    ///
    /// Relative paths in the file are relative to the file's folder; those of flags, to the current one.
    ///
    /// # Errors
    /// All mistakes that can be determined in one pass.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Self, Mistakes> {
        let Some(path) = file else {
            return Self::from_flags(flags);
        };
        let name = path.display().to_string();
        let text = fs::read(path).map_err(|error| {
            let what = match error.kind() {
                std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
                _ => format!("can't be read: {error}"),
            };
            let mistake = Mistake::new(Place::File, what);
            let mistake = match file_like(path) {
                Some(similar) => mistake.similar(similar),
                None => mistake,
            };
            Mistakes::new(Some((name.clone(), String::new())), vec![mistake])
        })?;
        let text = utf8(&name, &text)?;
        Self::from_text(&name, text, path.parent().unwrap_or(Path::new("")), flags)
    }

    /// Reads the configuration from the `text` of a file called `name`, whose relative paths are taken from `folder`.
    ///
    /// # Errors
    /// See [`MachineConfig::load`].
    pub fn from_text(name: &str, text: &str, folder: &Path, flags: &Flags) -> Result<Self, Mistakes> {
        let mut mistakes = Vec::new();
        let config = document::draft(text, &mut mistakes).and_then(|mut draft| {
            flags.apply(&mut draft, &mut mistakes);
            resolve::machine(&draft, folder, &mut mistakes)
        });
        match config {
            Some(config) if mistakes.is_empty() => Ok(config),
            _ => Err(Mistakes::new(Some((name.to_owned(), text.to_owned())), mistakes)),
        }
    }

    /// Makes the configuration of one virtual machine from the command line alone.
    ///
    /// # Errors
    /// See [`MachineConfig::load`].
    pub fn from_flags(flags: &Flags) -> Result<Self, Mistakes> {
        let mut mistakes = Vec::new();
        let mut draft = draft::Draft::with_one_vm();
        flags.apply(&mut draft, &mut mistakes);
        match resolve::machine(&draft, Path::new(""), &mut mistakes) {
            Some(config) if mistakes.is_empty() => Ok(config),
            _ => Err(Mistakes::new(None, mistakes)),
        }
    }
}
