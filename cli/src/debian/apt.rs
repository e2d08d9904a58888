//! Runs apt with a separate configuration for one suite of Debian's archive.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::index::{self, Package};
use crate::child;
use crate::config::{Arch, units};
use crate::exit;
use crate::progress::Task;

/// The package that holds Debian's archive keys.
pub const KEYRING_PACKAGE: &str = "debian-archive-keyring";

const KEYRINGS: [&str; 2] = ["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp"];

/// The system's apt settings that also apply here: those for network access only.
/// Hooks, architectures and sources of the system are ignored.
const INHERITED: [&str; 6] =
    ["Acquire::http", "Acquire::https", "Acquire::ForceIPv4", "Acquire::ForceIPv6", "Acquire::Retries", "Acquire::Queue-Mode"];

/// Debian's name of an architecture.
pub const fn debian_name(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "arm64",
        Arch::X86_64 => "amd64",
    }
}

/// A private apt for one suite.
pub struct Apt {
    config: PathBuf,
    suite: &'static str,
}

impl Apt {
    /// Writes the configuration for packages of an architecture into `root` (below the cache).
    ///
    /// # Errors
    /// Debian's keys are not installed; the directory can't be written.
    pub fn new(arch: Arch, root: &Path, suite: &'static str, mirror: &str) -> Result<Self> {
        Self::with(arch, &root.join(suite), suite, mirror, "main", false)
    }

    /// Like [`Apt::new`] for Arm, with the suite's source packages.
    pub fn with_sources(root: &Path, suite: &'static str, mirror: &str) -> Result<Self> {
        Self::with(Arch::Aarch64, &root.join(format!("{suite}-source")), suite, mirror, "main", true)
    }

    /// Like [`Apt::new`], for the component with the packages of Debian's installer.
    pub fn of_installer(arch: Arch, root: &Path, suite: &'static str, mirror: &str) -> Result<Self> {
        Self::with(arch, &root.join(format!("{suite}-installer")), suite, mirror, "main/debian-installer", false)
    }

    fn with(arch: Arch, root: &Path, suite: &'static str, mirror: &str, component: &str, sources: bool) -> Result<Self> {
        let keyring = KEYRINGS
            .iter()
            .find(|path| Path::new(path).exists())
            .ok_or_else(|| exit::lacking(format!("Debian's archive keys are missing: install the package {KEYRING_PACKAGE}")))?;
        for dir in ["etc/parts", "state/lists/partial", "cache/archives/partial"] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        }
        let write = |name: &str, text: String| {
            let path = root.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
        };
        let name = debian_name(arch);
        let mut list = format!("deb [arch={name} signed-by={keyring}] {mirror} {suite} {component}\n");
        if sources {
            list += &format!("deb-src [signed-by={keyring}] {mirror} {suite} {component}\n");
        }
        write("etc/sources.list", list)?;
        write("status", String::new())?;
        write("apt.conf", configuration(root, name, &inherited_settings()))?;
        Ok(Self { config: root.join("apt.conf"), suite })
    }

    /// Updates the list of packages and reads it.
    pub fn packages(&self) -> Result<Vec<Package>> {
        let task = Task::start(format!("reading the package list of Debian {}", self.suite));
        self.run(&["update", "-q", "--error-on=any"], Path::new("/"), &task)
            .with_context(|| format!("fetching the package list of Debian {}", self.suite))?;
        let output =
            self.command(&["indextargets", "--format", "$(FILENAME)", "Created-By: Packages"]).output().context("starting apt-get")?;
        let files = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut packages = Vec::new();
        for file in files.lines() {
            let text = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
            packages.extend(index::packages(&text));
        }
        Ok(packages)
    }

    /// Downloads a package into the directory `to`, verified by apt, and returns its file.
    pub fn download(&self, package: &Package, to: &Path) -> Result<PathBuf> {
        let task = Task::start(format!("fetching {} {}", package.name, package.version));
        let wanted = format!("{}={}", package.name, package.version);
        self.run(&["download", "-q", &wanted], to, &task).with_context(|| format!("fetching {wanted}"))?;
        fs::read_dir(to)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb" || extension == "udeb"))
            .with_context(|| format!("apt-get downloaded no file for {wanted}"))
    }

    /// Downloads the upstream archive of a source package into the directory `to`, verified by apt, and
    /// returns its file.
    pub fn download_source(&self, package: &Package, to: &Path) -> Result<PathBuf> {
        let task = Task::start(format!("fetching the sources of {} {}", package.name, package.version));
        let wanted = format!("{}={}", package.name, package.version);
        self.run(&["source", "-q", "--download-only", "--tar-only", &wanted], to, &task)
            .with_context(|| format!("fetching the sources of {wanted}"))?;
        fs::read_dir(to)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.to_string_lossy().contains(".orig.tar"))
            .with_context(|| format!("apt-get downloaded no archive for {wanted}"))
    }

    /// Downloads these packages and everything that they depend on, verified by apt, into apt's cache. Returns the
    /// packages' files, as far as possible in the order of their dependencies.
    ///
    /// [`Apt::packages`] must have updated the lists before.
    pub fn download_with_dependencies(&self, names: &[&str]) -> Result<Vec<PathBuf>> {
        let install = ["install", "-q", "--yes", "--no-install-recommends"];
        let simulation = self.command(&[&install[..], &["--simulate"], names].concat()).output().context("starting apt-get")?;
        if !simulation.status.success() {
            bail!("apt-get can't install {} together:\n{}", names.join(", "), String::from_utf8_lossy(&simulation.stderr).trim_end());
        }
        let archives = self.config.with_file_name("cache").join("archives");
        let simulated = String::from_utf8_lossy(&simulation.stdout).into_owned();
        let files: Vec<_> = simulated.lines().filter_map(installed_file).map(|name| archives.join(name)).collect();
        let task = Task::start(format!("fetching {}", units::plural(files.len(), "package")));
        self.run(&[&install[..], &["--download-only"], names].concat(), Path::new("/"), &task).context("fetching packages")?;
        match files.iter().find(|file| !file.exists()) {
            Some(missing) => bail!("apt-get downloaded no {}", missing.display()),
            None => Ok(files),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("apt-get");
        // LC_ALL: untranslated error messages can be searched for.
        command.env("APT_CONFIG", &self.config).env("LC_ALL", "C.UTF-8").args(args).stdin(Stdio::null());
        command
    }

    /// Runs apt-get in `dir`, shows its progress, and converts its messages to an error if it fails.
    fn run(&self, args: &[&str], dir: &Path, task: &Task) -> Result<()> {
        let mut child = self
            .command(args)
            // apt reports progress on standard output, as lines `dlstatus:FILE:PERCENT:TEXT`.
            .args(["-o", "APT::Status-Fd=1"])
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| exit::lacking(format!("apt-get can't be run: {error}")))?;
        let errors = child::errors_of(&mut child);
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(percent) = progress(&line) {
                    task.percent(percent);
                }
            }
        }
        let status = child.wait().context("waiting for apt-get")?;
        let errors = errors.join().unwrap_or_default();
        if !status.success() {
            bail!("apt-get {} failed ({status}):\n{}", args.join(" "), errors.trim_end());
        }
        Ok(())
    }
}

/// The percentage in a status line of apt.
fn progress(line: &str) -> Option<f64> {
    line.strip_prefix("dlstatus:")?.split(':').nth(1)?.parse().ok()
}

/// The name of a package's file in apt's cache, from a line of a simulated installation, such as
/// `Inst libc6 (2.41-12 Debian:13/stable [arm64])`.
fn installed_file(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
    let version = rest.split(' ').next()?.replace(':', "%3a");
    let arch = rest.split_once('[')?.1.split(']').next()?;
    Some(format!("{name}_{version}_{arch}.deb"))
}

fn configuration(root: &Path, arch: &str, inherited: &str) -> String {
    let root = root.display();
    format!(
        r#"Dir::Etc "{root}/etc/";
Dir::Etc::main "apt.conf";
Dir::Etc::parts "parts";
Dir::Etc::sourcelist "sources.list";
Dir::Etc::sourceparts "parts";
Dir::Etc::preferences "preferences";
Dir::Etc::preferencesparts "parts";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
Dir::State "{root}/state/";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache/";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
APT::Architecture "{arch}";
APT::Architectures {{ "{arch}"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::GzipIndexes "false";
{inherited}"#
    )
}

/// The [`INHERITED`] settings of the system, as lines of a configuration.
fn inherited_settings() -> String {
    INHERITED
        .into_iter()
        .filter_map(|tree| Command::new("apt-config").args(["dump", "--no-empty", "--format", "%F \"%v\";%n", tree]).output().ok())
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_parsed_from_status_lines() {
        assert_eq!(progress("dlstatus:2:48.7958:Retrieving file 2 of 3"), Some(48.7958));
        assert_eq!(progress("Get:1 mirror trixie/main arm64 busybox-static"), None);
        assert_eq!(progress("dlstatus:"), None);
    }

    #[test]
    fn files_are_named_after_package_version_and_architecture() {
        let line = "Inst passwd (1:4.17.4-2 Debian:13.6/stable [arm64]) []";
        assert_eq!(installed_file(line).as_deref(), Some("passwd_1%3a4.17.4-2_arm64.deb"));
        assert_eq!(installed_file("Inst netbase (6.5 Debian:13.6/stable [all])").as_deref(), Some("netbase_6.5_all.deb"));
        assert_eq!(installed_file("Conf netbase (6.5 Debian:13.6/stable [all])"), None);
    }
}
