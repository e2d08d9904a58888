//! The release of a Linux kernel.

use super::{Kernel, UNPACKING};

/// The beginning of Linux's banner, which the release follows.
pub(super) const BANNER: &[u8] = b"Linux version ";

/// The release of a Linux kernel for Arm, such as `6.12.107+deb13-cloud-arm64`. `None` if it can't be told.
pub fn release(file: &[u8], ram: u64) -> Option<String> {
    let kernel = Kernel::recognise(file, ram, &UNPACKING).ok()?;
    let releases = kernel.segments.iter().filter_map(|segment| release_in(kernel.bytes(segment)));
    releases.max_by_key(String::len)
}

/// Longest release, the zero at its end included (`__NEW_UTS_LEN`).
const RELEASE_LEN: usize = 65;

fn release_in(bytes: &[u8]) -> Option<String> {
    let release_at = |at: usize| {
        let rest = &bytes[at + BANNER.len()..];
        let release = rest.iter().take(RELEASE_LEN).position(|byte| *byte == b' ').map(|end| &rest[..end])?;
        // Not a format string, and nothing that would confuse a terminal: a guest may have written it.
        (release.first()?.is_ascii_digit() && release.iter().all(u8::is_ascii_graphic))
            .then(|| String::from_utf8_lossy(release).into_owned())
    };
    memchr::memmem::find_iter(bytes, BANNER).find_map(release_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_follow_the_banner() {
        let text = b"\0Linux version %s (%s)\0Linux version 6.12.107+deb13-cloud-arm64 (debian-kernel@lists.debian.org) #1\0";
        assert_eq!(release_in(text).as_deref(), Some("6.12.107+deb13-cloud-arm64"));
        assert_eq!((release_in(b"Linux version "), release_in(&[b"Linux version 6".as_slice(), &[b'1'; 100]].concat())), (None, None));
    }
}
