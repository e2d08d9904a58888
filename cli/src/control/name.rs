//! Names of machines.

use stile_blob::{MAX_NAME_LEN, is_name};

/// Checks a name by the rule for VMs: [`is_name`].
///
/// # Errors
/// A sentence that describes valid names.
pub fn check(name: &str) -> Result<String, String> {
    if is_name(name) { Ok(name.to_owned()) } else { Err(format!("expected 1 to {MAX_NAME_LEN} characters of a to z, 0 to 9 and -")) }
}

/// Splits NAME/VM; the VM is `None` if nothing follows the machine, or only a slash.
pub fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        // As shells complete directories.
        Some((machine, "")) => (machine, None),
        Some((machine, vm)) => (machine, Some(vm)),
        None => (text, None),
    }
}

/// Returns a pronounceable name: three syllables of a consonant and a vowel, chosen by the bytes.
pub fn pronounceable(random: [u8; 6]) -> String {
    const CONSONANTS: &[u8] = b"bdfgklmnprstvz";
    const VOWELS: &[u8] = b"aeiou";
    let letter = |letters: &[u8], byte: u8| char::from(letters[usize::from(byte) % letters.len()]);
    random.chunks_exact(2).flat_map(|pair| [letter(CONSONANTS, pair[0]), letter(VOWELS, pair[1])]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_in_paths() {
        assert_eq!(check("web-1"), Ok("web-1".into()));
        for name in ["", "Web", "a/b", "..", "a b", &"a".repeat(33)] {
            assert!(check(name).is_err(), "{name}");
        }
    }

    #[test]
    fn generated_names_are_names() {
        for byte in 0..=u8::MAX {
            let name = pronounceable([byte, byte, byte / 2, byte / 3, 255 - byte, byte]);
            assert_eq!(name.len(), 6);
            assert_eq!(check(&name), Ok(name));
        }
    }

    #[test]
    fn a_slash_divides_machine_and_vm() {
        assert_eq!((split("web"), split("web/db")), (("web", None), ("web", Some("db"))));
        assert_eq!(split("web/"), ("web", None));
    }
}
