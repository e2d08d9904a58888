//! The output of a run, as text that grows.

/// Output without terminal control sequences.
#[derive(Default)]
pub struct Output {
    text: String,
    /// Length of the complete lines in `text`. The rest is the text of `last`.
    complete: usize,
    /// The bytes of the last line, which may not be complete.
    last: Vec<u8>,
}

impl Output {
    /// Adds bytes. Linear in the added bytes and the last line, so that a chatty guest is not throttled.
    pub fn push(&mut self, bytes: &[u8]) {
        self.text.truncate(self.complete);
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
        for part in &mut lines {
            self.last.extend(part);
            if let Some(line) = self.last.strip_suffix(b"\n") {
                self.text.push_str(&plain(line));
                self.text.push('\n');
                self.complete = self.text.len();
                self.last.clear();
            }
        }
        self.text.push_str(&plain(&self.last));
    }

    /// The complete text. The last line may change when bytes are added.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn plain(line: &[u8]) -> String {
    stile::session::plain(&String::from_utf8_lossy(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_does_not_depend_on_how_it_arrives() {
        let bytes = "a\n\u{1b}[1mbold\u{1b}[0m ö\r\n\nend".as_bytes();
        let whole = |size| {
            let mut output = Output::default();
            bytes.chunks(size).for_each(|part| output.push(part));
            output.text().to_owned()
        };
        assert_eq!(whole(bytes.len()), "a\nbold ö\n\nend");
        for size in 1..bytes.len() {
            assert_eq!(whole(size), whole(bytes.len()), "{size}");
        }
    }
}
