//! Boot Loader Specification, type 1: a file for each entry (UAPI Group, "Boot Loader Specification").

use super::entry::{Entry, Expansions, key_and_value};
use crate::config::Arch;

/// Names of an architecture in entries: the specification's, which are EFI's, and others in use.
fn names(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::Aarch64 => &["aa64", "arm64", "aarch64"],
        Arch::X86_64 => &["x64", "amd64", "x86_64", "x86-64"],
    }
}

/// Reads a file of `loader/entries`: its version, and the entry. None if it is for another architecture than `arch`, or has no kernel.
/// Variables in options (`$kernelopts`) are GRUB's: `variable` returns their values.
pub fn parse<'v>(text: &str, arch: Arch, variable: impl Fn(&str) -> &'v str) -> Option<(String, Entry)> {
    let mut entry = Entry::default();
    let mut version = String::new();
    let mut options = Vec::new();
    let mut expansions = Expansions::default();
    for (key, value) in text.lines().filter_map(key_and_value) {
        match key {
            "architecture" if !names(arch).contains(&value.to_ascii_lowercase().as_str()) => return None,
            "version" => version = value.to_owned(),
            "linux" => entry.kernel = value.to_owned(),
            "initrd" => entry.initrds.extend(value.split_whitespace().filter(|name| !name.starts_with('$')).map(str::to_owned)),
            "options" => options.extend(value.split_whitespace().map(|word| match word.strip_prefix('$') {
                Some(name) => expansions.fitting(variable(name.trim_matches(['{', '}']))).to_owned(),
                None => word.to_owned(),
            })),
            _ => {}
        }
    }
    entry.options = options.into_iter().filter(|option| !option.is_empty()).collect::<Vec<_>>().join(" ");
    (!entry.kernel.is_empty()).then_some((version, entry))
}

#[cfg(test)]
mod tests {
    use super::super::entry::LONGEST_EXPANSION;
    use super::*;

    #[test]
    fn entries_are_read() {
        let text = "# Fedora\ntitle Fedora Linux (6.11)\nversion 6.11.4-301.fc41.aarch64\nlinux /vmlinuz-6.11.4\n\
                    initrd /initramfs-6.11.4.img $tuned_initrd\noptions root=UUID=1 ro $kernelopts ${tuned_params}\ngrub_class fedora\n";
        let (version, entry) = parse(text, Arch::Aarch64, |name| if name == "kernelopts" { "net.ifnames=0" } else { "" }).unwrap();
        assert_eq!((&version[..], &entry.kernel[..]), ("6.11.4-301.fc41.aarch64", "/vmlinuz-6.11.4"));
        assert_eq!((entry.initrds, &entry.options[..]), (vec!["/initramfs-6.11.4.img".into()], "root=UUID=1 ro net.ifnames=0"));
        let is_for = |name: &str, arch| parse(&format!("architecture {name}\nlinux /a\n"), arch, |_| "").is_some();
        assert!(!is_for("x64", Arch::Aarch64) && is_for("x64", Arch::X86_64));
        assert!(is_for("AA64", Arch::Aarch64) && !is_for("AA64", Arch::X86_64));
        assert_eq!(parse("title none\n", Arch::X86_64, |_| ""), None);
    }

    #[test]
    fn variables_are_bounded() {
        let value = "x".repeat(LONGEST_EXPANSION / 2);
        let options = |text: &str| parse(text, Arch::Aarch64, |_| &value).unwrap().1.options.len();
        assert_eq!(options("linux /a\noptions $a\n"), value.len());
        assert_eq!(options(&format!("linux /a\n{}", "options $a\n".repeat(4000))), 2 * value.len() + 1);
    }
}
