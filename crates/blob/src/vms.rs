//! The virtual machines' configurations, decoded one at a time.

use stile_board::MAX_VMS;

use crate::{Error, Vm};

/// The virtual machines, at least one, in the order of their numbers everywhere else.
///
/// Only the encoded form is kept: there may be many, and each takes several hundred bytes.
#[derive(Clone, Debug)]
pub struct Vms<'a> {
    /// The encodings of those that are left, and what follows them in the configuration.
    rest: &'a [u8],
    left: usize,
}

impl<'a> Vms<'a> {
    /// Reads their number. Their encodings are valid only if [`decode_next`](Self::decode_next) returns all of them.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (left, rest) = postcard::take_from_bytes::<usize>(bytes).map_err(|_| Error::Encoding)?;
        if left > MAX_VMS {
            return Err(Error::Encoding);
        }
        Ok(Self { rest, left })
    }

    /// The next virtual machine.
    pub(crate) fn decode_next(&mut self) -> Result<Option<Vm<'a>>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        let (vm, rest) = postcard::take_from_bytes::<Vm<'a>>(self.rest).map_err(|_| Error::Encoding)?;
        (self.rest, self.left) = (rest, self.left - 1);
        Ok(Some(vm))
    }

    /// The part of the configuration behind those that have been decoded.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Vms<'a> {
    type Item = Vm<'a>;

    fn next(&mut self) -> Option<Vm<'a>> {
        // `Blob::parse` has decoded all of them.
        self.decode_next().ok().flatten()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Vms<'_> {}
