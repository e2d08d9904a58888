//! A linear frame buffer, as a device-tree node (binding `simple-framebuffer`).

use dtoolkit::fdt::FdtNode;

use crate::nodes::{cells, spans, text};
use crate::tree_writer::TreeWriter;

/// `compatible` of the node.
pub const COMPATIBLE: &str = "simple-framebuffer";

/// Bytes of a pixel in the formats that are accepted.
const PIXEL: u64 = 4;
/// Formats of 32-bit pixels with 8 bits per color. White is all ones in each of them.
const FORMATS: [&str; 4] = ["x8r8g8b8", "a8r8g8b8", "x8b8g8r8", "a8b8g8r8"];
/// Maximum width and height, in pixels.
const MAX_SIDE: u32 = 16384;

/// A linear frame buffer of 32-bit pixels in which zero is black and all ones is white.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBuffer {
    /// Physical address of the top left pixel, a multiple of 4.
    pub address: u64,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Distance between lines in bytes, a multiple of 4.
    pub stride: u32,
}

/// Whether pixels with these masks are 32 bits wide: narrower ones leave bits 24 to 31 unused.
pub fn has_words(bits: u32) -> bool {
    bits > 0xff_ffff
}

impl FrameBuffer {
    /// Returns the frame buffer if its geometry is consistent and its `size` bytes hold all lines.
    pub fn checked(self, size: u64) -> Option<FrameBuffer> {
        let Self { address, width, height, stride } = self;
        let is_aligned = address.is_multiple_of(PIXEL) && u64::from(stride).is_multiple_of(PIXEL);
        let has_area = (1..=MAX_SIDE).contains(&width) && (1..=MAX_SIDE).contains(&height);
        let fits = u64::from(stride) >= u64::from(width) * PIXEL && self.len() <= size && address.checked_add(size)? <= 1 << 48;
        (is_aligned && has_area && fits).then_some(self)
    }

    /// Size in bytes: all lines.
    pub fn len(&self) -> u64 {
        u64::from(self.stride) * u64::from(self.height)
    }

    /// Whether it has no pixels, which [`checked`](Self::checked) excludes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads a node. `None` if a property is missing, out of range, or names another format.
    pub fn read(node: FdtNode<'_>) -> Option<FrameBuffer> {
        let registers = spans::<1>(node).pop()?;
        let [width, height, stride] = ["width", "height", "stride"].map(|name| cells(&node, name).first().copied());
        let it = FrameBuffer { address: registers.start, width: width?, height: height?, stride: stride? };
        let is_known = FORMATS.contains(&text(&node, "format")?);
        it.checked(registers.end - registers.start).filter(|_| is_known)
    }

    /// Writes the node into a parent with two cells for addresses and for sizes.
    pub(crate) fn write(&self, tree: &mut TreeWriter<'_>) {
        tree.begin_at("framebuffer", Some(self.address));
        tree.text("compatible", COMPATIBLE);
        tree.reg(core::iter::once(self.address..self.address.saturating_add(self.len())));
        tree.cells("width", &[self.width]);
        tree.cells("height", &[self.height]);
        tree.cells("stride", &[self.stride]);
        tree.text("format", "x8r8g8b8");
        tree.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: FrameBuffer = FrameBuffer { address: 0x1000, width: 640, height: 480, stride: 4 * 640 };

    #[test]
    fn pixels_have_sizes() {
        let are_words = [0xff00_0000_u32 | 0xff_0000 | 0xff00 | 0xff, 0x3fff_ffff, 0x0100_0000, 0xff_ffff, 0xf800 | 0x7e0 | 0x1f, 0];
        assert_eq!(are_words.map(has_words), [true, true, true, false, false, false]);
    }

    #[test]
    fn geometry_is_checked() {
        let size = 4 * 640 * 480;
        assert_eq!(BUFFER.checked(size), Some(BUFFER));
        assert_eq!(BUFFER.checked(size - 1), None);
        for wrong in [
            FrameBuffer { address: 0x1002, ..BUFFER },
            FrameBuffer { address: u64::MAX - 3, ..BUFFER },
            FrameBuffer { address: 1 << 48, ..BUFFER },
            FrameBuffer { width: 0, ..BUFFER },
            FrameBuffer { height: 0, ..BUFFER },
            FrameBuffer { width: 641, ..BUFFER },
            FrameBuffer { stride: 2562, ..BUFFER },
            FrameBuffer { width: u32::MAX, stride: u32::MAX - 3, ..BUFFER },
        ] {
            assert_eq!(wrong.checked(u64::MAX), None, "{wrong:?}");
            assert_eq!(wrong.checked(size), None, "{wrong:?}");
        }
    }
}
