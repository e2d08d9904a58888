//! The names of an architecture's reasons and static rows.

use core::fmt;

use crate::{DYNAMIC_BASE, REASONS, Reason, RowId, RowKey};

/// First static row.
const STATIC_BASE: usize = REASONS;
/// Room for static rows.
const STATIC_ROWS: usize = DYNAMIC_BASE - STATIC_BASE;

/// The names of one architecture's reasons and rows.
#[derive(Debug)]
pub struct Catalogue {
    /// The architecture's name.
    pub architecture: &'static str,
    pub(crate) reasons: &'static [&'static str],
    pub(crate) rows: &'static RowTable,
    /// Writes the name of a dynamic sub-reason.
    pub(crate) key: fn(Reason, u32, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl Catalogue {
    /// The name of a row, or `None` if this architecture has no such row.
    pub fn name(&'static self, key: RowKey) -> Option<Name> {
        let (reason, sub) = match key {
            RowKey::Dynamic { reason, key } => (reason, SubReason::Key { reason, key, write: self.key }),
            RowKey::Static(id) => match Reason::from_raw(id.raw().try_into().unwrap_or(u8::MAX)) {
                Some(reason) => (reason, SubReason::Other),
                None => {
                    let row = self.rows.get(id)?;
                    (row.reason, SubReason::Known { of: row.of, name: row.name, access: row.access })
                }
            },
        };
        Some(Name { reason, reason_name: self.reason(reason)?, sub })
    }

    /// The name of a reason, or `None` if this architecture has no such reason.
    pub fn reason(&self, reason: Reason) -> Option<&'static str> {
        self.reasons.get(usize::from(reason.raw())).copied()
    }

    /// All named static rows, by number.
    pub fn static_rows(&'static self) -> impl Iterator<Item = RowId> {
        (0..DYNAMIC_BASE).map(RowId::masked).filter(|id| self.name(RowKey::Static(*id)).is_some())
    }
}

/// The name of a row.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// The reason.
    pub reason: Reason,
    /// The reason's name, such as `MMIO`.
    pub reason_name: &'static str,
    /// The sub-reason; its [`Display`](fmt::Display) is its name, such as `PL011 FR read`.
    pub sub: SubReason,
}

/// The direction of a guest's access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The guest read.
    Read,
    /// The guest wrote.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// The sub-reason of a row.
#[derive(Clone, Copy, Debug)]
pub enum SubReason {
    /// All exits without a row of their own.
    Other,
    /// A static row.
    Known {
        /// The device or family, such as `PL011`; empty if none.
        of: &'static str,
        /// The register, function or event, such as `FR`.
        name: &'static str,
        /// The access's direction, if the row is for one.
        access: Option<Access>,
    },
    /// A dynamic row.
    #[non_exhaustive]
    Key {
        /// The reason that the key belongs to.
        reason: Reason,
        /// The encoded sub-reason.
        key: u32,
        /// Writes the key's name.
        write: fn(Reason, u32, &mut fmt::Formatter<'_>) -> fmt::Result,
    },
}

impl fmt::Display for SubReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Other => f.write_str("other"),
            Self::Key { reason, key, write } => write(reason, key, f),
            Self::Known { of, name, access } => {
                f.write_str(of)?;
                if !of.is_empty() && !name.is_empty() {
                    f.write_str(" ")?;
                }
                f.write_str(name)?;
                match access {
                    Some(access) => write!(f, " {access}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Consecutive static rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    first: usize,
    len: usize,
}

impl Block {
    /// The first block of an architecture.
    pub(crate) const fn first(len: usize) -> Self {
        Self { first: STATIC_BASE, len }
    }

    /// The block of `len` rows right after this one.
    pub(crate) const fn then(self, len: usize) -> Self {
        let block = Self { first: self.first + self.len, len };
        assert!(block.first + block.len <= DYNAMIC_BASE, "no room for this many static rows");
        block
    }

    /// The row at `index`, which the caller keeps below the block's length.
    #[inline]
    pub(crate) const fn row(self, index: usize) -> RowId {
        debug_assert!(index < self.len);
        RowId::masked(self.first + index)
    }

    /// The row at `index` of a block of read and write row pairs.
    #[inline]
    pub(crate) const fn access(self, index: usize, write: bool) -> RowId {
        self.row(index * 2 + write as usize)
    }
}

/// The static rows' names, by row.
#[derive(Debug)]
pub(crate) struct RowTable([Option<StaticRow>; STATIC_ROWS]);

#[derive(Clone, Copy, Debug)]
pub(crate) struct StaticRow {
    reason: Reason,
    of: &'static str,
    name: &'static str,
    access: Option<Access>,
}

/// Builds a [`RowTable`] in a constant: a missing or duplicate row fails to compile.
pub(crate) struct TableBuilder {
    rows: [Option<StaticRow>; STATIC_ROWS],
    filled: usize,
}

impl TableBuilder {
    pub(crate) const fn new() -> Self {
        Self { rows: [None; STATIC_ROWS], filled: 0 }
    }

    /// Names the rows of a block.
    pub(crate) const fn block(mut self, block: Block, reason: Reason, of: &'static str, names: &[&'static str]) -> Self {
        assert!(names.len() == block.len, "a block needs a name for each row");
        let mut i = 0;
        while i < names.len() {
            let row = StaticRow { reason, of, name: names[i], access: None };
            self = self.put(block.row(i), row);
            i += 1;
        }
        self
    }

    /// Names the rows of a block of read and write row pairs.
    pub(crate) const fn accesses(mut self, block: Block, reason: Reason, of: &'static str, names: &[&'static str]) -> Self {
        assert!(2 * names.len() == block.len, "a block needs a name for each pair of rows");
        let mut i = 0;
        while i < names.len() {
            let read = StaticRow { reason, of, name: names[i], access: Some(Access::Read) };
            let write = StaticRow { access: Some(Access::Write), ..read };
            self = self.put(block.access(i, false), read);
            self = self.put(block.access(i, true), write);
            i += 1;
        }
        self
    }

    const fn put(mut self, id: RowId, row: StaticRow) -> Self {
        let place = id.index() - STATIC_BASE;
        assert!(self.rows[place].is_none(), "duplicate name for a row");
        self.rows[place] = Some(row);
        self.filled += 1;
        self
    }

    /// The finished table: checks that every block up to and including `last` is named.
    pub(crate) const fn finish(self, last: Block) -> RowTable {
        assert!(self.filled == last.first + last.len - STATIC_BASE, "a block is not named");
        RowTable(self.rows)
    }
}

impl RowTable {
    fn get(&self, id: RowId) -> Option<&StaticRow> {
        self.0.get(id.index().checked_sub(STATIC_BASE)?)?.as_ref()
    }
}

/// Defines a block of single rows: a constant for each, and the list of their names.
macro_rules! named_rows {
    (
        $(#[$meta:meta])*
        $block:ident $names:ident = $prev:expr;
        $( $(#[$row_meta:meta])* $row:ident = $name:literal, )+
    ) => {
        $(#[$meta])*
        pub(super) const $block: $crate::catalogue::Block = {
            let prev: Option<$crate::catalogue::Block> = $prev;
            match prev {
                Some(prev) => prev.then($names.len()),
                None => $crate::catalogue::Block::first($names.len()),
            }
        };
        pub(super) const $names: &[&str] = &[$($name),+];
        const _: () = {
            // Numbers the rows.
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum Place { $($row),+ }
            $( assert!($block.row(Place::$row as usize).index() == $row.index()); )+
        };
        $crate::catalogue::named_rows!(@row $block, 0usize, $( $(#[$row_meta])* $row, )+);
    };
    (@row $block:ident, $place:expr, $(#[$meta:meta])* $row:ident, $($rest:tt)*) => {
        $(#[$meta])*
        pub const $row: $crate::RowId = $block.row($place);
        $crate::catalogue::named_rows!(@row $block, $place + 1usize, $($rest)*);
    };
    (@row $block:ident, $place:expr,) => {};
}
pub(crate) use named_rows;

/// Defines an architecture's reasons: a constant for each, and the list of their names.
macro_rules! reasons {
    ($( $(#[$meta:meta])* $name:ident, )+) => {
        // Numbers the reasons.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name),+ }
        $(
            $(#[$meta])*
            pub const $name: $crate::Reason = $crate::Reason::new(Number::$name as u8);
        )+
        /// The reasons' names, by number.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),+];
    };
}
pub(crate) use reasons;
