//! `extlinux.conf`, as U-Boot reads it, too (U-Boot's documentation, "Generic Distro Configuration").

use super::entry::{Entry, key_and_value};

/// Reads the default entry, or the first one.
pub fn parse(text: &str) -> Option<Entry> {
    let mut default = None;
    let mut entries: Vec<(&str, Entry)> = Vec::new();
    for (key, value) in text.lines().filter_map(key_and_value) {
        let last = entries.last_mut().map(|(_, entry)| entry);
        match (key.to_ascii_lowercase().as_str(), last) {
            ("default", _) => default = Some(value),
            ("label", _) => entries.push((value, Entry::default())),
            ("kernel" | "linux", Some(entry)) => entry.kernel = value.to_owned(),
            ("initrd", Some(entry)) => entry.initrds = value.split(',').map(|name| name.trim().to_owned()).collect(),
            ("append", Some(entry)) => entry.options = value.to_owned(),
            _ => {}
        }
    }
    entries.retain(|(_, entry)| !entry.kernel.is_empty());
    let chosen = entries.iter().position(|(label, _)| Some(*label) == default).unwrap_or(0);
    entries.into_iter().nth(chosen).map(|(_, entry)| entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_entry_is_read() {
        let text = "DEFAULT b\nTIMEOUT 10\nLABEL a\n  KERNEL /a\nLABEL b\n  MENU LABEL B\n  LINUX ../vmlinuz\n  INITRD /i1,/i2\n  APPEND root=LABEL=x quiet\n";
        let entry = parse(text).unwrap();
        assert_eq!((&entry.kernel[..], entry.initrds.len(), &entry.options[..]), ("../vmlinuz", 2, "root=LABEL=x quiet"));
        assert_eq!(parse("label a\nkernel /a\n").unwrap().kernel, "/a");
        assert_eq!(parse("label a\nfdt /a\n"), None);
        assert_eq!(parse("kernel /a\n"), None);
    }
}
