//! Disk images that a machine uses.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Deserialize;
use stile_config::raw_image::QCOW2;

use super::qemu_img;
use crate::exit;

/// Formats that are accepted. Others of QEMU's may refer to further files; a qcow2 image that does is refused.
const FORMATS: [&str; 2] = ["qcow2", "raw"];

/// An image, as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    /// Its file.
    pub file: PathBuf,
    /// Whether the VM can only read it.
    pub read_only: bool,
    /// Its format, if given: one of [`FORMATS`].
    pub format: Option<&'static str>,
    /// Whether a VM that `stile run` adds serves it.
    pub served: bool,
    /// Whether the VM has a copy of it in its memory.
    pub in_memory: bool,
}

impl Drive {
    /// Parses `FILE[,readonly][,format=raw][,served][,in-memory]`. The file's name may contain commas unless an option follows one.
    ///
    /// # Errors
    /// No name, or an unknown format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut drive = Self { file: PathBuf::new(), read_only: false, format: None, served: false, in_memory: false };
        let mut rest = text;
        while let Some((before, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                None if word == "readonly" => drive.read_only = true,
                None if word == "served" => drive.served = true,
                None if word == "in-memory" => drive.in_memory = true,
                Some(("format", name)) => {
                    drive.format = Some(
                        Self::format_named(name).ok_or_else(|| format!("unknown format \"{name}\"; expected {}", FORMATS.join(" or ")))?,
                    );
                }
                _ => break,
            }
            rest = before;
        }
        if rest.is_empty() {
            return Err("expected FILE[,readonly][,format=raw][,served][,in-memory]".into());
        }
        Ok(Self { file: rest.into(), ..drive })
    }

    /// The format with this name.
    pub fn format_named(name: &str) -> Option<&'static str> {
        FORMATS.into_iter().find(|format| *format == name)
    }

    /// The image's format: qcow2 unless another one is given.
    pub fn format(&self) -> &'static str {
        self.format.unwrap_or(FORMATS[0])
    }

    /// Checks that the image can be used, and returns its format. `option`: that of the machine's architecture, with a space behind it, for
    /// messages ([`Arch::option`](crate::config::Arch::option)).
    ///
    /// # Errors
    /// The file is missing, not regular, not accessible, in use, damaged, or of another format. The error includes the
    /// remedy.
    pub fn check(&self, option: &str) -> Result<&'static str> {
        self.inspect(option, false)
    }

    /// As [`Drive::check`], of an image that may be `in_use`: its contents change meanwhile, and are not checked.
    ///
    /// # Errors
    /// See [`Drive::check`].
    pub fn inspect(&self, option: &str, in_use: bool) -> Result<&'static str> {
        let name = self.file.display();
        let refuse = |what: String| Err(exit::usage(format!("disk: {name} {what}")));
        // Opening a pipe would wait for its other end.
        if let Ok(kind) = self.file.metadata().map(|about| about.file_type())
            && !(kind.is_file() || kind.is_dir() || kind.is_block_device())
        {
            return refuse("is neither a file nor a block device; expected an image".into());
        }
        match OpenOptions::new().read(true).write(!self.read_only).open(&self.file) {
            Ok(file) if file.metadata().is_ok_and(|about| about.is_dir()) => return refuse("is a directory; expected an image".into()),
            Ok(file) if file.metadata().is_ok_and(|about| about.is_file() && about.len() == 0) => {
                return refuse(format!("is an empty file, not an image: {}", self.maker(option)));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return refuse(match self.unknown_option() {
                    Some((file, word)) => format!(
                        "does not exist, but {} does, and \"{word}\" is not an option; \
                         options are readonly, format=raw, served and in-memory",
                        file.display()
                    ),
                    None => format!("does not exist: {}", self.maker(option)),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => return refuse("is a directory; expected an image".into()),
            Err(error)
                if !self.read_only && matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
            {
                return refuse(format!("can't be written ({error}): change its permissions, or use it with ,readonly"));
            }
            Err(error) => return refuse(format!("can't be read: {error}")),
        }
        let about = match about(&self.file, self.format, in_use) {
            Ok(about) => about,
            Err(error) if exit::status_of(&error) == exit::LACKING => return Err(error),
            Err(error) => return refuse(remedy(&format!("{error:#}"), self.format)),
        };
        let Some(format) = FORMATS.into_iter().find(|format| *format == about.format) else {
            return refuse(format!("has the format {}; `qemu-img convert -O qcow2` converts it", about.format));
        };
        if let Some(base) = about.backing {
            return refuse(format!("is only the difference to {base}; `qemu-img convert -O qcow2` makes it complete"));
        }
        if let Some(data) = about.specific.data.data_file {
            return refuse(format!(
                "keeps its data in another file, {data}, which it names itself; `qemu-img convert -O qcow2` makes it complete"
            ));
        }
        // A file of any content is a raw image: an accident is likelier, unless the format is given.
        if format == "raw" && self.format.is_none() {
            return refuse("is not a qcow2 image; if it is a raw one, add ,format=raw".into());
        }
        if about.specific.data.corrupt {
            return refuse(format!("is marked as corrupt: try `qemu-img check -r all {name}` on a copy"));
        }
        if format == "qcow2"
            && !in_use
            && let Err(error) = qemu_img::check(&self.file)
        {
            return refuse(remedy(&format!("{error:#}"), Some(format)));
        }
        if format == "raw"
            && !in_use
            && !self.read_only
            && let Err(error) = qemu_img::check_writable(&self.file)
        {
            return refuse(remedy(&format!("{error:#}"), Some(format)));
        }
        Ok(format)
    }

    /// Whether the file is used as a raw image, but begins as a qcow2 image does.
    pub fn is_qcow2_as_raw(&self) -> bool {
        let mut start = [0; QCOW2.len()];
        self.format() == "raw" && File::open(&self.file).is_ok_and(|mut file| file.read_exact(&mut start).is_ok() && start == QCOW2)
    }

    /// The command that makes a disk in this file, with the option of an architecture, for messages.
    fn maker(&self, option: &str) -> String {
        let name = self.file.display().to_string();
        let plain = |c: char| c.is_alphanumeric() || "/._-+,".contains(c);
        let name = if name.chars().all(plain) { name } else { format!("{name:?}") };
        match self.format() {
            "raw" => format!("`truncate -s 8G {name}` makes an empty disk"),
            _ if self.file.exists() => format!("remove it, then `stile disk create {option}{name}` makes a disk"),
            _ => format!("`stile disk create {option}{name}` makes a disk"),
        }
    }

    /// If the name is that of another file, a comma, and a word that was meant as an option: that file and the word.
    pub fn unknown_option(&self) -> Option<(&Path, &str)> {
        let (file, word) = self.file.to_str()?.rsplit_once(',')?;
        Some((Path::new(file), word)).filter(|(file, _)| file.is_file())
    }
}

/// QEMU's description of an image.
#[derive(Debug, Deserialize)]
struct About {
    format: String,
    #[serde(rename = "backing-filename")]
    backing: Option<String>,
    #[serde(default, rename = "format-specific")]
    specific: Specific,
}

#[derive(Debug, Default, Deserialize)]
struct Specific {
    #[serde(default)]
    data: Flags,
}

#[derive(Debug, Default, Deserialize)]
struct Flags {
    #[serde(default)]
    corrupt: bool,
    #[serde(rename = "data-file")]
    data_file: Option<String>,
}

fn about(file: &Path, format: Option<&str>, in_use: bool) -> Result<About> {
    let mut options = vec!["info", "--output=json"];
    options.extend(in_use.then_some("-U"));
    options.extend(format.into_iter().flat_map(|format| ["-f", format]));
    Ok(serde_json::from_slice(&qemu_img::run(&options, &[file])?)?)
}

/// QEMU's message, and its remedy.
fn remedy(message: &str, format: Option<&str>) -> String {
    let message = message.lines().next().unwrap_or_default();
    let remedy = match message {
        _ if message.contains("lock") => "another machine uses it: end that one (`stile ps`), or use a copy".to_owned(),
        _ if message.contains("not in") && message.contains("format") => format!("it is no {} image", format.unwrap_or("such")),
        _ => "the image is damaged or incomplete: copy it again, or try `qemu-img check -r all` on a copy".to_owned(),
    };
    format!("can't be used: {remedy} ({message})")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn options_follow_the_name() {
        let drive = |text| Drive::parse(text).unwrap();
        assert_eq!(drive("a.qcow2"), Drive { file: "a.qcow2".into(), read_only: false, format: None, served: false, in_memory: false });
        assert_eq!(
            drive("a,b,readonly,format=raw"),
            Drive { file: "a,b".into(), read_only: true, format: Some("raw"), served: false, in_memory: false }
        );
        assert!(drive("a,served,readonly").served);
        assert!(drive("a,in-memory").in_memory);
        assert!(Drive::parse("a,format=vmdk").unwrap_err().contains("qcow2 or raw"));
        assert!(Drive::parse("").is_err() && Drive::parse(",readonly").is_err());
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let says = |drive: Drive| format!("{:#}", drive.check("").unwrap_err());
        let drive = |file: &Path| Drive { file: file.to_owned(), read_only: false, format: None, served: false, in_memory: false };
        assert!(says(drive(&dir.path().join("none"))).contains("does not exist: `stile disk create"));
        let of_pc = drive(&dir.path().join("none")).check("--arch x86_64 ").unwrap_err().to_string();
        assert!(of_pc.contains("`stile disk create --arch x86_64 /"), "{of_pc}");
        assert!(says(drive(dir.path())).contains("is a directory"));
        let existing = dir.path().join("a b");
        std::fs::write(&existing, "").unwrap();
        let mistyped = says(drive(&dir.path().join("a b,readonyl")));
        assert!(
            mistyped.ends_with("a b does, and \"readonyl\" is not an option; options are readonly, format=raw, served and in-memory"),
            "{mistyped}"
        );
        assert!(says(drive(&existing)).contains("a b is an empty file, not an image: remove it, then `stile disk create \"/"));
        let raw = |file: &Path| Drive { format: Some("raw"), ..drive(file) };
        assert!(says(raw(&existing)).contains("empty file, not an image: `truncate -s 8G \"/"));
        assert!(says(raw(&dir.path().join("none"))).contains("does not exist: `truncate -s 8G /"));
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert!(says(drive(&pipe)).contains("neither a file nor a block device"));
        assert!(says(drive(Path::new("/dev/null"))).contains("neither a file nor a block device"));
    }

    #[test]
    fn a_qcow2_image_as_a_raw_one_is_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        let drive = |format| Drive { file: file.clone(), read_only: false, format, served: false, in_memory: false };
        std::fs::write(&file, b"QFI\xfb\0\0\0\x03").unwrap();
        assert!(drive(Some("raw")).is_qcow2_as_raw() && !drive(None).is_qcow2_as_raw());
        std::fs::write(&file, b"QFI").unwrap();
        assert!(!drive(Some("raw")).is_qcow2_as_raw());
    }

    #[test]
    fn a_raw_image_in_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [raw, image] = ["raw", "image"].map(|name| dir.path().join(name));
        std::fs::write(&raw, [7; 4096]).unwrap();
        qemu_img::to_qcow2(&raw, &image).unwrap();
        let drive = |read_only| Drive { file: image.clone(), read_only, format: Some("raw"), served: false, in_memory: false };
        assert_eq!(drive(false).check("").unwrap(), "raw");
        // Another program of QEMU's holds the image's write lock until its standard input ends.
        let mut other =
            Command::new("qemu-io").args(["-f", "qcow2"]).arg(&image).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        other.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
        assert!(drive(false).check("").unwrap_err().to_string().contains("another machine uses it"));
        assert_eq!(drive(false).inspect("", true).unwrap(), "raw");
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    #[test]
    fn messages_of_qemu_become_remedies() {
        assert!(remedy("Failed to get shared \"write\" lock\nIs another process using it?", None).contains("another machine uses it"));
        assert!(remedy("Image is not in qcow2 format", Some("qcow2")).contains("no qcow2 image"));
        assert!(remedy("Could not read L1 table", None).contains("damaged"));
    }
}
