//! dpkg's database of packages whose files are on the disk, but that are not configured yet.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Path of the database, relative to the root.
pub const DIRECTORY: &str = "var/lib/dpkg";

/// A package's control information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// The package's name.
    pub name: String,
    /// The fields: the file `control`.
    pub fields: String,
    /// Absolute paths of the package's configuration files.
    pub conffiles: Vec<String>,
    /// The file `triggers`.
    pub triggers: String,
}

impl Control {
    /// Parses the file `control`; the other files are empty.
    pub fn new(fields: String) -> Option<Self> {
        let name = fields.lines().find_map(|line| line.strip_prefix("Package:"))?.trim().to_owned();
        Some(Self { name, fields, conffiles: Vec::new(), triggers: String::new() })
    }

    /// The package's name in names of the database's files: with the architecture if several can be installed together.
    pub fn file_stem(&self, arch: &str) -> String {
        match self.fields.lines().any(|line| line == "Multi-Arch: same") {
            true => format!("{}:{arch}", self.name),
            false => self.name.clone(),
        }
    }
}

/// The paths in a file `conffiles`.
pub fn conffiles(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(str::to_owned).collect()
}

/// The database, as far as it concerns all packages.
#[derive(Debug, Default)]
pub struct Database {
    status: String,
    file_triggers: String,
    triggers: BTreeMap<String, String>,
}

impl Database {
    /// Adds an unpacked package; `md5` gives the MD5 of a configuration file in hexadecimal digits.
    pub fn add(&mut self, package: &Control, md5: impl Fn(&str) -> Option<String>) {
        // Writing to a String never fails.
        let _ = write!(self.status, "{}\nStatus: install ok unpacked\n", package.fields.trim_end());
        if !package.conffiles.is_empty() {
            self.status += "Conffiles:\n";
            for path in &package.conffiles {
                let _ = writeln!(self.status, " {path} {}", md5(path).as_deref().unwrap_or("newconffile"));
            }
        }
        self.status.push('\n');
        for line in package.triggers.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let (Some(directive), Some(trigger)) = (words.next(), words.next()) else { continue };
            let interest = match directive {
                "interest" | "interest-await" => package.name.clone(),
                "interest-noawait" => format!("{}/noawait", package.name),
                _ => continue,
            };
            if trigger.starts_with('/') {
                let _ = writeln!(self.file_triggers, "{trigger} {interest}");
            } else {
                let _ = writeln!(self.triggers.entry(trigger.to_owned()).or_default(), "{interest}");
            }
        }
    }

    /// The files, by their paths in [`DIRECTORY`].
    pub fn files(self) -> Vec<(String, String)> {
        let mut files = vec![
            ("status".into(), self.status),
            ("available".into(), String::new()),
            ("info/format".into(), "1\n".into()),
            ("triggers/File".into(), self.file_triggers),
        ];
        files.extend(self.triggers.into_iter().map(|(name, text)| (format!("triggers/{name}"), text)));
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_unpacked_and_their_triggers_known() {
        let mut package = Control::new("Package: libc-bin\nVersion: 2\nMulti-Arch: same\n".into()).unwrap();
        package.conffiles = conffiles("/etc/ld.so.conf\nremove-on-upgrade /etc/old\n/etc/new\n");
        package.triggers = "# a comment\ninterest-noawait ldconfig\ninterest /usr/share/x # why\nactivate y\n".into();
        assert_eq!(package.file_stem("arm64"), "libc-bin:arm64");
        let mut database = Database::default();
        database.add(&package, |path| (path == "/etc/ld.so.conf").then(|| "0123".into()));
        let files: BTreeMap<_, _> = database.files().into_iter().collect();
        assert_eq!(
            files["status"],
            "Package: libc-bin\nVersion: 2\nMulti-Arch: same\nStatus: install ok unpacked\nConffiles:\n /etc/ld.so.conf 0123\n \
             /etc/new newconffile\n\n"
        );
        assert_eq!(files["triggers/File"], "/usr/share/x libc-bin\n");
        assert_eq!(files["triggers/ldconfig"], "libc-bin/noawait\n");
        assert_eq!(files["info/format"], "1\n");
    }
}
