//! Entries of boot loaders' menus, as their configuration files describe them.

/// An entry of a boot loader's menu. Paths are as in the file, not resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// The kernel.
    pub kernel: String,
    /// Initial RAM file systems, one after the other in memory.
    pub initrds: Vec<String>,
    /// The kernel's parameters.
    pub options: String,
    /// The file system that the paths are on, if it is not the one with the configuration.
    pub uuid: Option<String>,
}

/// Splits a line into a key and the rest.
pub fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let (key, value) = line.split_once(char::is_whitespace)?;
    (!line.starts_with('#')).then_some((key, value.trim()))
}
