//! The archive's list of packages, and the choice of a kernel from it.

use super::version;

/// A package of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The packages in the text of a `Packages` file (Debian's deb822 format).
pub fn packages(text: &str) -> impl Iterator<Item = Package> {
    text.split("\n\n").filter_map(|stanza| {
        let field = |name: &str| stanza.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()));
        Some(Package { name: field("Package")?, version: field("Version")? })
    })
}

/// The newest package with exactly this name.
pub fn newest_named(packages: &[Package], name: &str) -> Option<Package> {
    packages.iter().filter(|package| package.name == name).max_by(|a, b| version::compare(&a.version, &b.version)).cloned()
}

/// Which kernel is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Debian's general kernel of one series, such as `6.12`.
    General(&'static str),
    /// The same in the flavour for virtual machines.
    Cloud(&'static str),
    /// The newest kernel of all, in the flavour for virtual machines.
    NewestCloud,
}

/// The package that holds the newest kernel of the wanted kind.
///
/// Up to 6.18 the kernel is in `linux-image-RELEASE-FLAVOUR-unsigned`; where a `linux-binary-RELEASE-FLAVOUR` exists, the kernel is
/// there and the image package is an empty one that depends on it.
pub fn newest_kernel(packages: &[Package], choice: Choice, arch: &str) -> Option<Package> {
    packages
        .iter()
        .filter_map(|package| Some((Candidate::of(&package.name, arch)?, package)))
        .filter(|(candidate, _)| match choice {
            Choice::General(series) => !candidate.cloud && candidate.is_of_series(series),
            Choice::Cloud(series) => candidate.cloud && candidate.is_of_series(series),
            Choice::NewestCloud => candidate.cloud,
        })
        .max_by(|(a, package_a), (b, package_b)| {
            version::compare(a.release, b.release)
                .then_with(|| version::compare(&package_a.version, &package_b.version))
                .then_with(|| a.rank.cmp(&b.rank))
        })
        .map(|(_, package)| package.clone())
}

/// A package that may hold a kernel, by its name.
struct Candidate<'a> {
    /// The kernel's release, such as `6.1.0-50` or `7.3.4+deb13`.
    release: &'a str,
    cloud: bool,
    /// Which of several packages with the same release has the kernel in it: the greatest.
    rank: Rank,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Signed,
    Unsigned,
    Binary,
}

impl<'a> Candidate<'a> {
    fn of(name: &'a str, arch: &str) -> Option<Self> {
        let (rest, mut rank) = match name.strip_prefix("linux-binary-") {
            Some(rest) => (rest, Rank::Binary),
            None => (name.strip_prefix("linux-image-")?, Rank::Signed),
        };
        let rest = match rest.strip_suffix("-unsigned") {
            Some(rest) => {
                rank = rank.max(Rank::Unsigned);
                rest
            }
            None => rest,
        };
        let rest = rest.strip_suffix(arch)?.strip_suffix('-')?;
        let (release, cloud) = rest.strip_suffix("-cloud").map_or((rest, false), |release| (release, true));
        let other_flavour = ["-rt", "-16k"].iter().any(|flavour| release.ends_with(flavour));
        (release.starts_with(|c: char| c.is_ascii_digit()) && !other_flavour).then_some(Self { release, cloud, rank })
    }

    fn is_of_series(&self, series: &str) -> bool {
        self.release.strip_prefix(series).is_some_and(|rest| rest.starts_with('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHIVE: &str = "\
Package: linux-image-6.1.0-47-arm64-unsigned
Version: 6.1.170-1

Package: linux-image-6.1.0-50-arm64-unsigned
Architecture: arm64
Version: 6.1.180-1

Package: linux-image-6.1.0-50-cloud-arm64-unsigned
Version: 6.1.180-1

Package: linux-image-6.1.0-50-arm64
Version: 6.1.180-1

Package: linux-image-6.12.107+deb13-rt-arm64-unsigned
Version: 6.12.107-1

Package: linux-image-6.12.94+deb13-arm64-unsigned
Version: 6.12.94-1

Package: linux-image-6.12.107+deb13-arm64-unsigned
Version: 6.12.107-1

Package: linux-image-6.12.107+deb13-arm64-dbg
Version: 6.12.107-1

Package: linux-image-arm64
Version: 6.12.107-1

Package: linux-image-7.3.4+deb13-cloud-arm64
Version: 7.3.4-1~bpo13+1

Package: linux-binary-7.3.4+deb13-cloud-arm64
Version: 7.3.4-1~bpo13+1

Package: linux-binary-7.2.12+deb13-cloud-arm64
Version: 7.2.12-1~bpo13+1
";

    fn newest(choice: Choice) -> Option<String> {
        newest_kernel(&packages(ARCHIVE).collect::<Vec<_>>(), choice, "arm64").map(|package| package.name)
    }

    #[test]
    fn the_newest_kernel_of_a_series_is_found() {
        assert_eq!(newest(Choice::General("6.1")).as_deref(), Some("linux-image-6.1.0-50-arm64-unsigned"));
        assert_eq!(newest(Choice::General("6.12")).as_deref(), Some("linux-image-6.12.107+deb13-arm64-unsigned"));
        assert_eq!(newest(Choice::General("6")).as_deref(), Some("linux-image-6.12.107+deb13-arm64-unsigned"));
        assert_eq!(newest(Choice::General("5.10")), None);
    }

    #[test]
    fn the_newest_of_all_is_in_the_package_that_holds_the_kernel() {
        assert_eq!(newest(Choice::NewestCloud).as_deref(), Some("linux-binary-7.3.4+deb13-cloud-arm64"));
    }

    #[test]
    fn a_named_package_is_found_in_its_newest_version() {
        let list = [("a", "1.9"), ("a", "1.10"), ("b", "3")].map(|(name, version)| Package { name: name.into(), version: version.into() });
        assert_eq!(newest_named(&list, "a").map(|package| package.version).as_deref(), Some("1.10"));
        assert_eq!(newest_named(&list, "c"), None);
    }
}
