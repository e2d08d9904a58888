//! Fuzz targets: for each untrusted input of Stile, a function that takes any bytes and must return.
//!
//! A target panics if the code under test does, if it disagrees with a model, or if it breaks a bound. The same functions run in two ways:
//!
//! - `stile fuzz TARGET` runs libFuzzer on a build with coverage instrumentation, from the kept corpus ([`corpus`]);
//! - `tests/corpus.rs` runs the corpus and a fixed number of its mutations ([`mutate`]), and checks that the corpus still reaches the
//!   target's [`marks`].

pub mod corpus;
pub mod input;
pub mod marks;
pub mod mutate;
mod target;
mod targets;

pub use target::{LONGEST, Target};

/// All targets.
pub const TARGETS: &[Target] = targets::ALL;

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
