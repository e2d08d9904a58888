//! The newest kernel of a directory, and the initial RAM file system that belongs to it by its name.

use super::entry::Entry;
use crate::debian::compare_versions;

/// Names of a kernel without a version: Debian, Ubuntu and others link them to the newest kernel.
const KERNELS: [&str; 2] = ["vmlinuz", "Image"];
const INITRDS: [&str; 4] = ["initrd.img", "initrd", "initramfs.img", "initramfs"];

/// Chooses the newest kernel among the names in `directory`, which ends with a slash. Returns `None` if there is no kernel.
pub fn choose(directory: &str, names: &[String]) -> Option<Entry> {
    let has = |name: &str| names.iter().any(|other| other == name);
    let entry = |kernel: &str, initrd: Option<String>| Entry {
        kernel: format!("{directory}{kernel}"),
        initrds: initrd.map(|name| format!("{directory}{name}")).into_iter().collect(),
        ..Entry::default()
    };
    if let Some(kernel) = KERNELS.into_iter().find(|name| has(name)) {
        return Some(entry(kernel, INITRDS.into_iter().find(|name| has(name)).map(str::to_owned)));
    }
    let versions = names.iter().filter_map(|name| {
        let (prefix, version) = name.split_once('-')?;
        KERNELS.contains(&prefix).then_some((version, name))
    });
    let (version, kernel) = versions.max_by(|one, other| compare_versions(one.0, other.0))?;
    let initrds = ["initrd.img-", "initramfs-", "initrd-"]
        .into_iter()
        .flat_map(|prefix| [format!("{prefix}{version}"), format!("{prefix}{version}.img")]);
    Some(entry(kernel, initrds.into_iter().find(|name| has(name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Option<(String, Vec<String>)> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        choose("/boot/", &names).map(|entry| (entry.kernel, entry.initrds))
    }

    #[test]
    fn the_newest_kernel_is_chosen_with_its_initrd() {
        let names =
            ["vmlinuz-6.1.0-9-arm64", "vmlinuz-6.1.0-40-arm64", "initrd.img-6.1.0-9-arm64", "initrd.img-6.1.0-40-arm64", "config-7"];
        assert_eq!(chosen(&names), Some(("/boot/vmlinuz-6.1.0-40-arm64".into(), vec!["/boot/initrd.img-6.1.0-40-arm64".into()])));
        let fedora = ["vmlinuz-6.11.4", "initramfs-6.11.4.img", "vmlinuz-0-rescue-1", "initramfs-0-rescue-1.img"];
        assert_eq!(chosen(&fedora), Some(("/boot/vmlinuz-6.11.4".into(), vec!["/boot/initramfs-6.11.4.img".into()])));
        let linked = ["vmlinuz", "initrd.img", "vmlinuz-9", "vmlinuz.old"];
        assert_eq!(chosen(&linked), Some(("/boot/vmlinuz".into(), vec!["/boot/initrd.img".into()])));
        assert_eq!(chosen(&["Image-5"]), Some(("/boot/Image-5".into(), Vec::new())));
        assert_eq!(chosen(&["vmlinuz.old", "grub"]), None);
    }
}
