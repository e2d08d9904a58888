//! An interrupt output that reports only changes of its level.

/// A level-sensitive interrupt output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line(bool);

impl Line {
    /// An output at its reset level, low.
    pub(crate) const LOW: Self = Self(false);

    /// Drives the output to `level`. Returns `Some(level)` if it changed.
    #[inline]
    pub(crate) fn drive(&mut self, level: bool) -> Option<bool> {
        if self.0 == level {
            return None;
        }
        self.0 = level;
        Some(level)
    }

    /// The current level.
    #[inline]
    pub(crate) const fn level(self) -> bool {
        self.0
    }
}
