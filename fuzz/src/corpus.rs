//! Corpora: `corpus/NAME.hex` has one input a line, in hexadecimal. Lines that start with `#` are comments: they name the fault that the
//! next input once caused.

use std::path::PathBuf;

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
    lines.map(|(number, line)| line_of(line.trim()).ok_or(number + 1)).collect()
}

fn line_of(line: &str) -> Option<Vec<u8>> {
    if !line.len().is_multiple_of(2) {
        return None;
    }
    let digits = line.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<_>>>()?;
    Some(digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

/// The line of an input, without its end.
pub fn line(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).collect()
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
