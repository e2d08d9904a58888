//! Values of the command line for disks.

use crate::config::units;

/// The smallest disk: the base packages take half of it.
const SMALLEST: u64 = 1 << 30;
/// The largest disk: QEMU's and ext4's limits are higher, but a larger number is a mistake.
const LARGEST: u64 = 16 << 40;

/// Reads a disk's size from the command line.
///
/// # Errors
/// No size, or one that is too small or too large.
pub fn size(text: &str) -> Result<u64, String> {
    match units::parse_size(text) {
        Some(size) if (SMALLEST..=LARGEST).contains(&size) => Ok(size.next_multiple_of(1 << 20)),
        _ => Err(format!("expected a size from {} to {}, such as 8G", units::size(SMALLEST), units::size(LARGEST))),
    }
}

/// Reads a package's name from the command line (Debian Policy Manual, "Package").
///
/// # Errors
/// No such name.
pub fn package_name(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let first = text.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if text.len() < 2 || !first || !text.chars().all(inner) {
        return Err("expected names of Debian packages, separated by commas, such as openssh-server,redis".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names_are_checked() {
        assert_eq!(size("8G"), Ok(8 << 30));
        assert!(["8", "1M", "100T", "many", ""].iter().all(|text| size(text).is_err()));
        assert_eq!(package_name("libstdc++6"), Ok("libstdc++6".into()));
        assert!(["", "-y", "a", "A b", "x/../y"].iter().all(|text| package_name(text).is_err()));
    }
}
