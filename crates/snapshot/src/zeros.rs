//! Bytes whose trailing zeros are left out.

/// `bytes` without trailing zeros.
pub fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

/// Reverses [`trimmed`]. Returns false, without a change, if `bytes` is too long.
pub fn fill(to: &mut [u8], bytes: &[u8]) -> bool {
    if bytes.len() > to.len() {
        return false;
    }
    let (start, rest) = to.split_at_mut(bytes.len());
    start.copy_from_slice(bytes);
    rest.fill(0);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_trimmed_is_filled_again(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), zeros in 0usize..20) {
            bytes.resize(bytes.len() + zeros, 0);
            let mut filled = std::vec![0xff; bytes.len()];
            prop_assert!(fill(&mut filled, trimmed(&bytes)));
            prop_assert_eq!(&filled, &bytes);
            let long = std::vec![1; bytes.len() + 1];
            prop_assert!(!fill(&mut filled, &long));
            prop_assert_eq!(filled, bytes);
        }
    }
}
