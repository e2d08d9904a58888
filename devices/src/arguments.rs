//! The command line.

use std::path::PathBuf;

/// A device to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceArgument {
    /// File or block device with the content of the disk.
    pub file: PathBuf,
    /// The client can't write.
    pub read_only: bool,
}

/// Reads an argument `block=FILE` or `block=FILE,readonly`.
///
/// # Errors
/// Another form; the message says which was expected.
pub fn parse(argument: &str) -> Result<DeviceArgument, String> {
    let wrong = || format!("{argument}: expected block=FILE or block=FILE,readonly");
    let file = argument.strip_prefix("block=").ok_or_else(wrong)?;
    let (file, read_only) = file.strip_suffix(",readonly").map_or((file, false), |file| (file, true));
    if file.is_empty() { Err(wrong()) } else { Ok(DeviceArgument { file: file.into(), read_only }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed() {
        let device = |file: &str, read_only| Ok(DeviceArgument { file: file.into(), read_only });
        assert_eq!(parse("block=/dev/vda"), device("/dev/vda", false));
        assert_eq!(parse("block=a,b,readonly"), device("a,b", true));
        for wrong in ["", "block=", "block=,readonly", "net=tap0", "/dev/vda"] {
            assert!(parse(wrong).unwrap_err().contains("expected block=FILE"), "{wrong}");
        }
    }
}
