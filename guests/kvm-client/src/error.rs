//! Errors.

/// An error, as a sentence.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
