//! Lines of JSON, as in the files of kept figures.

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes a line for each value.
///
/// # Errors
/// A value contains a number that JSON can't represent.
pub fn write<T: Serialize>(values: &[T]) -> Result<String> {
    values.iter().map(|value| Ok(serde_json::to_string(value)? + "\n")).collect()
}

/// Reads the output of [`write`].
///
/// # Errors
/// A line is malformed; the message has its number.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<Vec<T>> {
    text.lines().enumerate().map(|(number, line)| serde_json::from_str(line).with_context(|| format!("line {}", number + 1))).collect()
}
