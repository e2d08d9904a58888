//! The archive's list of packages, and the choice of a kernel from it.
//!
//! Crate deb822-lossless, made for editing files, would build a syntax tree of the whole list, some 50 MB of text. Of each
//! package only six fields of a line each are needed.

use super::version;

/// A package of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Names of packages that it needs (`Pre-Depends` and `Depends`): of alternatives the first one.
    pub needs: Vec<String>,
    /// Whether every system must have it (`Priority: required`, or `Essential`).
    pub required: bool,
}

/// The packages in the text of a `Packages` file (Debian's deb822 format).
pub fn packages(text: &str) -> impl Iterator<Item = Package> {
    text.split("\n\n").filter_map(|stanza| {
        let field = |name: &str| stanza.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()));
        let needs = ["Pre-Depends", "Depends"].into_iter().filter_map(field).flat_map(|list| needs(&list)).collect();
        let required =
            field("Priority").is_some_and(|priority| priority == "required") || field("Essential").is_some_and(|word| word == "yes");
        Some(Package { name: field("Package")?, version: field("Version")?, needs, required })
    })
}

/// The names in a list of relationships, such as `libc6 (>= 2.41), default-mta | mail-transport-agent` (Debian Policy Manual, "Syntax of
/// relationship fields").
fn needs(list: &str) -> Vec<String> {
    let name = |relation: &str| {
        let first = relation.trim().split(|c: char| c.is_whitespace() || matches!(c, '(' | '[' | '|' | ':')).next()?;
        (!first.is_empty()).then(|| first.to_owned())
    };
    list.split(',').filter_map(name).collect()
}

/// These packages in their newest versions, and the packages of shared libraries that they depend on,
/// transitively.
///
/// Extracted programs run alone, so other dependencies (interpreters, users, services) are omitted.
pub fn with_libraries(packages: &[Package], names: &[&str]) -> Option<Vec<Package>> {
    let mut found = names.iter().map(|name| newest_named(packages, name)).collect::<Option<Vec<_>>>()?;
    let mut next = 0;
    while let Some(package) = found.get(next) {
        for name in package.needs.clone() {
            // zlib1g is the only library package with another name pattern.
            if name.trim_start_matches('z').starts_with("lib") && found.iter().all(|package| package.name != name) {
                // A name without a package is virtual; libraries have no such names.
                found.extend(newest_named(packages, &name));
            }
        }
        next += 1;
    }
    Some(found)
}

/// The newest package with exactly this name.
pub fn newest_named(packages: &[Package], name: &str) -> Option<Package> {
    packages.iter().filter(|package| package.name == name).max_by(|a, b| version::compare(&a.version, &b.version)).cloned()
}

/// The wanted kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Debian's general kernel of one series, such as `6.12`.
    General(&'static str),
    /// A release series, in the flavour for virtual machines.
    Cloud(&'static str),
    /// The newest kernel of all, in the flavour for virtual machines.
    NewestCloud,
}

/// The package with the newest kernel of the wanted kind.
///
/// Up to 6.18 the kernel is in `linux-image-RELEASE-FLAVOUR-unsigned`; if there is a
/// `linux-binary-RELEASE-FLAVOUR`, it has the kernel, and the image package is an empty one that depends on
/// it.
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
    /// Of several packages with the same release, the greatest has the kernel.
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
    fn the_newest_kernel_is_in_the_package_that_contains_it() {
        assert_eq!(newest(Choice::NewestCloud).as_deref(), Some("linux-binary-7.3.4+deb13-cloud-arm64"));
    }

    #[test]
    fn a_named_package_is_found_in_its_newest_version() {
        let package =
            |(name, version): (&str, &str)| Package { name: name.into(), version: version.into(), needs: Vec::new(), required: false };
        let list = [("a", "1.9"), ("a", "1.10"), ("b", "3")].map(package);
        assert_eq!(newest_named(&list, "a").map(|package| package.version).as_deref(), Some("1.10"));
        assert_eq!(newest_named(&list, "c"), None);
    }

    #[test]
    fn required_packages_are_distinguished() {
        let archive = "Package: a\nVersion: 1\nPriority: required\n\nPackage: b\nVersion: 1\nPriority: optional\n\nPackage: c\nVersion: 1\nEssential: yes\n";
        let required: Vec<_> = packages(archive).map(|package| package.required).collect();
        assert_eq!(required, [true, false, true]);
    }

    #[test]
    fn only_libraries_are_added() {
        let archive = "\
Package: tool
Version: 1
Pre-Depends: init-system-helpers (>= 1.54~)
Depends: python3:any, liba1 (>= 2.41) | liba0, libvirtual

Package: liba1
Version: 2
Depends: zlib1g

Package: zlib1g
Version: 3
Depends: liba1

Package: python3
Version: 4
";
        let list: Vec<_> = packages(archive).collect();
        assert_eq!(list[0].needs, ["init-system-helpers", "python3", "liba1", "libvirtual"]);
        let names = |found: Vec<Package>| found.into_iter().map(|package| package.name).collect::<Vec<_>>();
        assert_eq!(names(with_libraries(&list, &["tool"]).unwrap()), ["tool", "liba1", "zlib1g"]);
        assert_eq!(with_libraries(&list, &["tool", "missing"]), None);
    }
}
