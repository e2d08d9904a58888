//! Corpora: `corpus/NAME.hex` has one input a line, in hexadecimal. Lines that start with `#` are comments: they name the fault that the
//! next input once caused.

use std::path::PathBuf;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

/// The file with a target's corpus.
pub fn path(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target).with_extension("hex")
}

/// The inputs of a corpus's text.
///
/// # Errors
/// The number of a line that is not hexadecimal, from 1.
pub fn parse(text: &str) -> Result<Vec<Vec<u8>>, usize> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    lines.map(|(number, line)| HEXLOWER_PERMISSIVE.decode(line.trim().as_bytes()).map_err(|_| number + 1)).collect()
}

/// The line of an input, without its end.
pub fn line(input: &[u8]) -> String {
    HEXLOWER.encode(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_inputs() {
        let inputs = vec![vec![0, 0x1f, 0xff], vec![], vec![7]];
        let text: String = inputs.iter().map(|input| line(input) + "\n").collect();
        assert_eq!(parse(&format!("# a fault\n{text}")), Ok(inputs));
        assert_eq!((parse("00\n123"), parse("# x\n00\nzz")), (Err(2), Err(3)));
    }
}
