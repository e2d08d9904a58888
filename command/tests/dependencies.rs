//! The dependencies of both workspaces comply with `deny.toml`: licences and sources.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    /// `None` for the packages of the repository.
    source: Option<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

/// The packages in the lock file of the workspace in `folder` that a target needs; none if not all are downloaded, and can't be.
fn packages(folder: &Path, target: &str) -> Option<Vec<Package>> {
    let arguments = ["metadata", "--locked", "--format-version", "1", "--filter-platform", target];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(folder).output().expect("cargo runs");
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let offline = ["failed to download", "failed to get", "network"].iter().any(|text| errors.contains(text));
        assert!(offline, "{errors}");
        eprintln!("skipped, because dependencies can't be downloaded: {}: {errors}", folder.display());
        return None;
    }
    Some(serde_json::from_slice::<Metadata>(&output.stdout).expect("cargo's metadata").packages)
}

#[test]
fn dependencies_obey_deny_toml() {
    let text = std::fs::read_to_string(repository().join("deny.toml")).expect("deny.toml");
    let deny: Deny = toml::from_str(&text).expect("deny.toml");
    let allowed = |license: &str| deny.licenses.allow.iter().any(|allowed| allowed == license);
    for (folder, target) in [
        ("", "x86_64-unknown-linux-gnu"),
        ("", "aarch64-unknown-none-softfloat"),
        ("guests", "aarch64-unknown-linux-musl"),
        ("guests", "x86_64-unknown-none"),
    ] {
        for package in packages(&repository().join(folder), target).into_iter().flatten() {
            let license = package.license.unwrap_or_default();
            assert!(satisfied(&license, &allowed), "{}: deny.toml does not allow its licence, {license:?}", package.name);
            let Some(source) = package.source else { continue };
            let known = deny.sources.allow_registry.iter().any(|registry| source == format!("registry+{registry}"));
            assert!(known, "{}: deny.toml does not allow its source, {source}", package.name);
        }
    }
}

/// Whether an SPDX licence expression can be satisfied with allowed licences. An exception (WITH) only adds permissions.
fn satisfied(expression: &str, allowed: &impl Fn(&str) -> bool) -> bool {
    // Older manifests separate alternatives by a slash.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let value = any(&mut words, allowed);
    value && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// Alternatives: terms that OR joins.
fn any(words: &mut Words<'_>, allowed: &impl Fn(&str) -> bool) -> bool {
    let mut value = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        value |= all(words, allowed);
    }
    value
}

/// A term: licences that AND joins, which binds tighter than OR.
fn all(words: &mut Words<'_>, allowed: &impl Fn(&str) -> bool) -> bool {
    let mut value = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        value &= one(words, allowed);
    }
    value
}

/// A licence, perhaps with an exception, or an expression in parentheses.
fn one(words: &mut Words<'_>, allowed: &impl Fn(&str) -> bool) -> bool {
    if words.next_if_eq(&"(").is_some() {
        return any(words, allowed) & words.next_if_eq(&")").is_some();
    }
    let value = words.next().is_some_and(allowed);
    if words.next_if_eq(&"WITH").is_some() {
        words.next();
    }
    value
}

#[test]
fn expressions() {
    let allowed = |license: &str| ["MIT", "Apache-2.0", "Zlib"].contains(&license);
    for (expression, expected) in [
        ("MIT", true),
        ("MPL-2.0", false),
        ("", false),
        ("GPL-2.0 OR MIT", true),
        ("GPL-2.0/MIT", true),
        ("MIT AND GPL-2.0", false),
        ("GPL-2.0 AND MIT OR Zlib", true),
        ("(GPL-2.0 OR MIT) AND Zlib", true),
        ("(GPL-2.0 OR MIT) AND LGPL-2.1", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-2.0 WITH Classpath-exception-2.0", false),
        ("(MIT", false),
    ] {
        assert_eq!(satisfied(expression, &allowed), expected, "{expression}");
    }
}
