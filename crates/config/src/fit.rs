//! Text in lines of limited length.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

/// Divides lines that are too long between words, as a terminal would not. The rest of a line stands below the column that it belongs to.
pub fn fit(text: &str, width: usize) -> String {
    text.lines().map(|line| fit_line(line, width)).collect::<Vec<_>>().join("\n")
}

/// Spaces between two columns of a table.
const GAP: &str = "  ";

fn fit_line(line: &str, width: usize) -> String {
    let (mut fitted, mut rest) = (String::new(), line.to_owned());
    while let Some((limit, next)) = rest.char_indices().nth(width) {
        let indent = rest.len() - rest.trim_start_matches(' ').len();
        // A word may end at the very edge.
        let Some(space) = rest[..limit + next.len_utf8()].rfind(' ').filter(|&space| space > indent) else { break };
        let (head, tail) = rest.split_at(space);
        let column = head.trim_end().rfind(GAP).map_or(0, |gap| head[..gap + GAP.len()].chars().count());
        let within_column = !head.ends_with(' ') && !tail.starts_with(GAP);
        // A narrow last column would become a tower of words.
        let below = match () {
            () if !fitted.is_empty() => indent,
            () if within_column && column > indent && column <= width / 2 => column,
            () => indent + 4,
        };
        fitted += head.trim_end();
        fitted.push('\n');
        let tail = tail.trim_start().to_owned();
        if below + tail.split(' ').next().map_or(0, |word| word.chars().count()) > width {
            rest = tail;
            break;
        }
        rest = " ".repeat(below) + &tail;
    }
    fitted + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_divided_between_words() {
        assert_eq!(fit("a short line\n\nanother", 12), "a short line\n\nanother");
        assert_eq!(fit("  one two three", 11), "  one two\n      three");
        assert_eq!(fit("0x1000  4 KiB  device tree", 18), "0x1000  4 KiB\n    device tree", "the column is too far right");
        assert_eq!(fit("name  a text of several words", 16), "name  a text of\n      several\n      words");
        assert_eq!(fit("unbreakable", 4), "unbreakable");
        assert_eq!(fit("ü ü ü ü", 5), "ü ü ü\n    ü");
        assert_eq!(fit("a bbbbbbbbbb", 5), "a\nbbbbbbbbbb");
    }

    #[test]
    fn every_line_fits_and_every_word_stays() {
        let text = "  0x0040000000-0x00428cffff   40.8 MiB   - kernel, 976.1 KiB of it zeroes      27 (PPI 11), 30 (PPI 14), level";
        for width in 30..100 {
            let fitted = fit(text, width);
            assert!(fitted.lines().all(|line| line.chars().count() <= width), "{width}: {fitted}");
            assert!(fitted.split_whitespace().eq(text.split_whitespace()), "{width}: {fitted}");
        }
    }
}
