//! A CD-ROM that boots Stile with GRUB.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::exit;

/// The packages that it is made with.
pub const PACKAGES: &str = "grub-common grub-pc-bin xorriso mtools";

/// What GRUB does: the image has its virtual machines behind it, so there is nothing else to load.
const CONFIGURATION: &str = "set timeout=0\nmultiboot /boot/stile\nboot\n";

/// Makes the CD-ROM `iso` of an image.
///
/// # Errors
/// A tool is missing or fails.
pub fn write(image: &Path, iso: &Path) -> Result<()> {
    let files = tempfile::tempdir().context("making a temporary directory")?;
    let boot = files.path().join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    fs::copy(image, boot.join("stile")).with_context(|| format!("copying {}", image.display()))?;
    fs::write(boot.join("grub/grub.cfg"), CONFIGURATION)?;
    let output = Command::new("grub-mkrescue")
        // Nothing but what this needs: a full set of modules and fonts is megabytes.
        .args(["--install-modules=multiboot", "--fonts=", "--locales=", "--themes=", "-o"])
        .arg(iso)
        .arg(files.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| exit::lacking(format!("grub-mkrescue does not run ({error}): install the packages {PACKAGES}")))?;
    if !output.status.success() || !iso.exists() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(exit::lacking(format!(
            "grub-mkrescue fails (are the packages {PACKAGES} installed?): {}",
            said.lines().last().unwrap_or("it does not say why")
        )));
    }
    Ok(())
}
