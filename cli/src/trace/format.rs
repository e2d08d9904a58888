//! The formats of a trace's file.

use clap::ValueEnum;

/// The format of a trace's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Perfetto's protocol buffers, for <https://ui.perfetto.dev>.
    #[default]
    Perfetto,
    /// JSON, an object a line.
    Json,
}
