//! The dependencies of both workspaces comply with `deny.toml`: licences, sources, duplicates and wildcards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Bans {
    multiple_versions: String,
    wildcards: String,
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
struct Skip {
    /// Name and version, with `@` in between.
    #[serde(rename = "crate")]
    package: String,
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
        let offline =
            !errors.contains("--locked") && ["failed to download", "failed to get", "network"].iter().any(|text| errors.contains(text));
        assert!(offline, "{errors}");
        eprintln!("skipped, because dependencies can't be downloaded: {}: {errors}", folder.display());
        return None;
    }
    Some(serde_json::from_slice::<Metadata>(&output.stdout).expect("cargo's metadata").packages)
}

fn deny() -> Deny {
    let text = std::fs::read_to_string(repository().join("deny.toml")).expect("deny.toml");
    toml::from_str(&text).expect("deny.toml")
}

#[test]
fn dependencies_obey_deny_toml() {
    let deny = deny();
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

/// Returns `name@version` of each package version in a lock file that has a newer one there.
fn older_versions(lock: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(Deserialize)]
    struct Locked {
        name: String,
        version: String,
    }
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Locked { name, version } in toml::from_str::<Lock>(lock).expect("a lock file").package {
        versions.entry(name).or_default().push(version);
    }
    let number = |version: &String| version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0)).collect::<Vec<u64>>();
    let older = versions.into_iter().flat_map(|(name, mut versions)| {
        versions.sort_by_key(number);
        versions.pop();
        versions.into_iter().map(move |version| format!("{name}@{version}"))
    });
    older.collect()
}

#[test]
fn no_package_has_two_versions() {
    let Bans { multiple_versions, skip, .. } = deny().bans;
    assert_eq!(multiple_versions, "deny");
    let mut skipped: Vec<String> = skip.into_iter().map(|skip| skip.package).collect();
    let mut older: Vec<String> = ["Cargo.lock", "guests/Cargo.lock"]
        .iter()
        .flat_map(|lock| older_versions(&std::fs::read_to_string(repository().join(lock)).expect("a lock file")))
        .collect();
    skipped.sort();
    older.sort();
    older.dedup();
    assert_eq!(older, skipped, "older versions of packages (left), and those that deny.toml skips (right)");
}

#[test]
fn the_newest_version_is_no_duplicate() {
    let lock = r#"
        [[package]]
        name = "a"
        version = "1.10.0"
        [[package]]
        name = "a"
        version = "1.9.0"
        [[package]]
        name = "b"
        version = "1.0.0"
    "#;
    assert_eq!(older_versions(lock), ["a@1.9.0"]);
}

/// The dependencies of a manifest that any version satisfies.
fn wildcards(manifest: &toml::Value) -> Vec<String> {
    let Some(table) = manifest.as_table() else { return Vec::new() };
    let found = table.iter().flat_map(|(key, value)| {
        let here = if key.ends_with("dependencies") { value.as_table() } else { None };
        let is_any = |value: &toml::Value| value.get("version").unwrap_or(value).as_str() == Some("*");
        let any = here.into_iter().flatten().filter(|(_, value)| is_any(value)).map(|(name, _)| name.clone());
        any.chain(if here.is_none() { wildcards(value) } else { Vec::new() }).collect::<Vec<_>>()
    });
    found.collect()
}

#[test]
fn no_dependency_takes_any_version() {
    assert_eq!(deny().bans.wildcards, "deny");
    let any: toml::Value = toml::from_str("[target.x.dependencies]\na = \"*\"\nb = \"1\"\nc = { version = \"*\" }").expect("a manifest");
    assert_eq!(wildcards(&any), ["a", "c"]);
    let mut open = vec![repository()];
    let mut manifests = 0;
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let name = entry.file_name();
            if entry.path().is_dir() && name != "target" && name != "src" && !name.to_string_lossy().starts_with('.') {
                open.push(entry.path());
            } else if name == "Cargo.toml" {
                let manifest = toml::from_str(&std::fs::read_to_string(entry.path()).expect("a manifest")).expect("a manifest");
                assert_eq!(wildcards(&manifest), [""; 0], "{}", entry.path().display());
                manifests += 1;
            }
        }
    }
    assert!(manifests > 30, "the manifests are not where this test looks");
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

/// The features of the packages that are built for `packages`: a line for each.
fn features(packages: &[&str]) -> Vec<String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["tree", "--locked", "--prefix", "none", "--format", "{p} {f}", "--edges", "normal,build,dev"]).args(packages);
    let output = command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR"))).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Repeated packages are marked.
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// `stile test` builds the tests of all packages while it runs: with other features of a dependency, that would replace the program.
#[test]
fn tests_are_built_with_the_features_of_the_command() {
    let all = features(&["--workspace"]);
    let other: Vec<String> = features(&["--package", "stile-command"]).into_iter().filter(|package| !all.contains(package)).collect();
    assert!(other.is_empty(), "{other:#?}");
}
