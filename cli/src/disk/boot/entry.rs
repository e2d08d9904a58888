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

/// Maximum number of bytes that the variables of a line, or of an entry's file, expand to: more than the parameters
/// that Linux accepts.
pub const LONGEST_EXPANSION: usize = 4096;

/// Bounds the expansion of variables: the file comes from a guest's disk.
#[derive(Debug, Default)]
pub struct Expansions {
    /// Bytes so far.
    bytes: usize,
}

impl Expansions {
    /// Returns a variable's value; an empty one if it does not fit.
    pub fn fitting<'v>(&mut self, value: &'v str) -> &'v str {
        let bytes = self.bytes.saturating_add(value.len());
        if bytes > LONGEST_EXPANSION {
            return "";
        }
        self.bytes = bytes;
        value
    }
}

/// Splits a line into a key and the rest.
pub fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let (key, value) = line.split_once(char::is_whitespace)?;
    (!line.starts_with('#')).then_some((key, value.trim()))
}
