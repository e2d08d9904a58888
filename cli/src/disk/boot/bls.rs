//! Boot Loader Specification, type 1: a file for each entry (UAPI Group, "Boot Loader Specification").

use super::entry::{Entry, Expansions, key_and_value};

/// Reads a file of `loader/entries`: its version, and the entry. None if it is for another architecture, or has no kernel.
/// Variables in options (`$kernelopts`) are GRUB's: `variable` returns their values.
pub fn parse<'v>(text: &str, variable: impl Fn(&str) -> &'v str) -> Option<(String, Entry)> {
    let mut entry = Entry::default();
    let mut version = String::new();
    let mut options = Vec::new();
    let mut expansions = Expansions::default();
    for (key, value) in text.lines().filter_map(key_and_value) {
        match key {
            "architecture" if !["aa64", "arm64", "aarch64"].contains(&value.to_ascii_lowercase().as_str()) => return None,
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
        let (version, entry) = parse(text, |name| if name == "kernelopts" { "net.ifnames=0" } else { "" }).unwrap();
        assert_eq!((&version[..], &entry.kernel[..]), ("6.11.4-301.fc41.aarch64", "/vmlinuz-6.11.4"));
        assert_eq!((entry.initrds, &entry.options[..]), (vec!["/initramfs-6.11.4.img".into()], "root=UUID=1 ro net.ifnames=0"));
        assert_eq!(parse("architecture x64\nlinux /a\n", |_| ""), None);
        assert_eq!(parse("title none\n", |_| ""), None);
    }

    #[test]
    fn variables_are_bounded() {
        let value = "x".repeat(LONGEST_EXPANSION / 2);
        let options = |text: &str| parse(text, |_| &value).unwrap().1.options.len();
        assert_eq!(options("linux /a\noptions $a\n"), value.len());
        assert_eq!(options(&format!("linux /a\n{}", "options $a\n".repeat(4000))), 2 * value.len() + 1);
    }
}
