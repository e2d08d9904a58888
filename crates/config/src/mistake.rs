//! Mistakes in a configuration, and their presentation.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use crate::distance::distance;
use crate::fit::fit;

/// Maximum length in bytes of a word with a similar one.
const LONGEST_WORD: usize = 64;

/// Place of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the file, at these bytes of it.
    Text(Range<usize>),
    /// In the file, at no particular place.
    File,
    /// On the command line, by this flag.
    Flag(&'static str),
    /// No place in the file or on the command line.
    Nowhere,
}

/// A mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    place: Place,
    what: String,
    expected: Option<String>,
    similar: Option<String>,
}

impl Mistake {
    /// A mistake; `what` is a clause without a full stop.
    pub fn new(place: Place, what: impl Into<String>) -> Self {
        Self { place, what: what.into(), expected: None, similar: None }
    }

    /// Adds the expected value.
    pub fn expected(self, expected: impl Into<String>) -> Self {
        Self { expected: Some(expected.into()), ..self }
    }

    /// Adds a suggestion.
    pub fn similar(self, similar: impl Into<String>) -> Self {
        Self { similar: Some(similar.into()), ..self }
    }

    /// Adds as suggestion the nearest word of `known` to `written`, if one is similar.
    pub fn similar_among<'k>(self, written: &str, known: impl IntoIterator<Item = &'k str>) -> Self {
        match similar(written, known) {
            Some(similar) => self.similar(similar),
            None => self,
        }
    }

    /// The place.
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// The whole sentence, without the place.
    pub fn message(&self) -> String {
        let mut message = self.what.clone();
        if let Some(expected) = &self.expected {
            message += &format!("; expected {expected}");
        }
        if let Some(similar) = &self.similar {
            message += &format!("; did you mean \"{similar}\"?");
        }
        // A single line, even if the user's text has several.
        message.chars().fold(String::new(), |mut line, c| {
            if c.is_control() {
                line.extend(c.escape_debug());
            } else {
                line.push(c);
            }
            line
        })
    }
}

/// The nearest word of `known` to `written`, if one is similar; none of a text that is no word.
pub fn similar<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    // Their distance would take minutes for megabytes.
    if written.len() > LONGEST_WORD {
        return None;
    }
    let far_from = |word: &str| distance(&written.to_lowercase(), &word.to_lowercase());
    let known = known.into_iter().filter(|word| *word != written);
    let (mut nearest, mut part) = (None, None);
    for word in known {
        let far = far_from(word);
        if far <= word.chars().count().max(3) / 3 {
            nearest = nearest.min(Some((far, word))).or(Some((far, word)));
        }
        // `cpu_model` is written for `cpu`, and `exits` for `exits_per_second`.
        if is_part(written, word) || is_part(word, written) {
            part = part.or(Some(word));
        }
    }
    nearest.map(|(_, word)| word).or(part)
}

/// Whether a word begins or ends a name of several words.
fn is_part(name: &str, word: &str) -> bool {
    let separators = ['_', '-'];
    let rest =
        [name.strip_prefix(word).map(|rest| rest.starts_with(separators)), name.strip_suffix(word).map(|rest| rest.ends_with(separators))];
    word.len() > 1 && rest.contains(&Some(true))
}

/// Appearance of mistakes: without colours and on lines of any length by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// With a terminal's colours.
    pub colour: bool,
    /// Columns of a line at most.
    pub width: Option<usize>,
}

impl Look {
    fn fit(self, text: String) -> String {
        match self.width {
            Some(width) => fit(&text, width),
            None => text,
        }
    }
}

/// All mistakes of a configuration, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    /// Name and text of the file, if any.
    source: Option<(String, String)>,
    list: Vec<Mistake>,
}

impl Mistakes {
    /// The mistakes `list` of a file, by its name and text, or of the command line.
    pub fn new(source: Option<(String, String)>, mut list: Vec<Mistake>) -> Self {
        list.sort_by_key(|mistake| match &mistake.place {
            Place::Text(span) => span.start,
            _ => 0,
        });
        Self { source, list }
    }

    /// Maximum number of mistakes shown.
    const MOST_SHOWN: usize = 50;

    /// The number of mistakes.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// The first mistake, with its place, in one line.
    pub fn first(&self) -> String {
        let first = self.list.first().map(|mistake| self.render_one(mistake, Look::default())).unwrap_or_default();
        first.lines().next().unwrap_or_default().to_owned()
    }

    /// Name of the file, if the configuration has one.
    pub fn file(&self) -> Option<&str> {
        self.source.as_ref().map(|(file, _)| &file[..])
    }

    /// Each mistake, with its line and column in the file, both counted from 1, if it has some.
    pub fn places(&self) -> impl Iterator<Item = (&Mistake, Option<(usize, usize)>)> {
        let text = self.source.as_ref().map_or("", |(_, text)| &text[..]);
        self.list.iter().map(move |mistake| {
            let at = match &mistake.place {
                Place::Text(span) => Some(line_and_column(text, first_line(text, span).start)),
                Place::File | Place::Flag(_) | Place::Nowhere => None,
            };
            (mistake, at)
        })
    }

    /// Each mistake: `file:line:column: sentence`, or `--flag: sentence`, with the line of the file below it.
    pub fn render(&self, look: Look) -> String {
        let mut shown: Vec<String> = self.list.iter().take(Self::MOST_SHOWN).map(|mistake| self.render_one(mistake, look)).collect();
        if let Some(more @ 1..) = self.list.len().checked_sub(Self::MOST_SHOWN) {
            shown.push(format!("and {more} more"));
        }
        shown.join("\n\n")
    }

    fn render_one(&self, mistake: &Mistake, look: Look) -> String {
        let (file, text) = match &self.source {
            Some((file, text)) => (&file[..], &text[..]),
            None => ("", ""),
        };
        let message = mistake.message();
        let span = match &mistake.place {
            Place::Nowhere if file.is_empty() => return look.fit(message),
            Place::File | Place::Nowhere => return look.fit(format!("{file}: {message}")),
            Place::Flag(flag) => return look.fit(format!("{flag}: {message}")),
            Place::Text(span) => first_line(text, span),
        };
        let (line, column) = line_and_column(text, span.start);
        let title = Level::ERROR.no_name().primary_title(look.fit(format!("{file}:{line}:{column}: {message}")));
        let annotation = AnnotationKind::Primary.span(span);
        let report = [title.element(Snippet::source(text).annotation(annotation))];
        let renderer = if look.colour { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&report)
    }
}

/// The part of a span on its first line: only that line is shown.
fn first_line(text: &str, span: &Range<usize>) -> Range<usize> {
    let mut start = span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let line_end = text[start..].find(['\n', '\r']).map_or(text.len(), |at| start + at);
    let mut end = span.end.clamp(start, line_end);
    while !text.is_char_boundary(end) {
        end += 1;
    }
    start..end
}

/// Line and column of a byte, both counted from 1, columns in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Look::default()))
    }
}

impl core::error::Error for Mistakes {}
