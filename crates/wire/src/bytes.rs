//! Bytes in messages.

use serde::{Deserialize, Serialize};

/// Rows of a [`Piece`]: arrays of more than 32 items have no serialization.
const ROW: usize = 32;

/// A few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes<const ROWS: usize>
where
    [[u8; ROW]; ROWS]: Serialize + for<'a> Deserialize<'a>,
{
    length: u16,
    rows: [[u8; ROW]; ROWS],
}

/// A piece of a package: as much as fits into a frame.
pub type Piece = Bytes<14>;
/// A sentence of Stile's.
pub type Text = Bytes<4>;

impl<const ROWS: usize> Bytes<ROWS>
where
    [[u8; ROW]; ROWS]: Serialize + for<'a> Deserialize<'a>,
{
    /// The most bytes.
    pub const MOST: usize = ROW * ROWS;

    /// The first [`MOST`](Self::MOST) of these.
    pub fn new(bytes: &[u8]) -> Self {
        let bytes = bytes.get(..Self::MOST).unwrap_or(bytes);
        let mut rows = [[0; ROW]; ROWS];
        rows.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
        Self { length: bytes.len() as u16, rows }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let all = self.rows.as_flattened();
        all.get(..self.length.into()).unwrap_or(all)
    }
}
