//! The configuration file of a machine, as `stile` and a booting Stile read it.
//!
//! [`document::draft`] parses the text into a [`draft::Draft`]: settings in the user's words, each with its place.
//! [`value`] checks them, and [`Mistakes`] shows what is wrong with them. [`boot`] compares the file that Stile finds when it
//! boots with the one of which its image was made.
//!
//! The text is untrusted input: whatever it is, no function panics or recurses deeper than the text's nesting, which
//! [`document`] limits.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod ablation;
pub mod boot;
mod distance;
pub mod document;
pub mod draft;
mod fit;
pub mod memory_disk;
mod mistake;
pub mod raw_image;
mod table;
mod text;
pub mod units;
pub mod value;

pub use fit::fit;
pub use mistake::{Look, Mistake, Mistakes, Place, similar};
pub use text::utf8;
