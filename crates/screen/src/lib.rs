//! Text on a linear frame buffer: lines from top to bottom, then from the top again.
//!
//! Nothing scrolls: moving a whole screen takes millions of accesses to device memory. The line below the last one written is
//! blank, which shows where the text ends. A character costs at most [`CELL`] pixels, and a new line one row of them.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

use core::convert::Infallible;
use core::fmt;

use embedded_graphics::mono_font::ascii::FONT_9X15;
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle, MonoTextStyleBuilder};
use embedded_graphics::pixelcolor::BinaryColor;
use embedded_graphics::prelude::*;
use embedded_graphics::text::{Baseline, Text};

/// Printable ASCII in cells of 9 by 15 pixels (X11's fixed fonts, public domain).
const FONT: &MonoFont<'_> = &FONT_9X15;

/// Pixels of a character's cell.
pub const CELL: u32 = FONT.character_size.width * FONT.character_size.height;

/// The pixels of a frame buffer.
pub trait Pixels {
    /// Width and height.
    fn size(&self) -> (u32, u32);
    /// Sets the pixel at `x` (from the left) and `y` (from the top), which are within [`size`](Self::size), to white or black.
    fn set(&mut self, x: u32, y: u32, white: bool);
}

/// A screen that shows text.
pub struct Screen<P> {
    canvas: Canvas<P>,
    columns: u32,
    rows: u32,
    column: u32,
    row: u32,
}

impl<P: Pixels> Screen<P> {
    /// Returns an empty screen after clearing its pixels. `None` if not even two lines of one character fit.
    pub fn new(pixels: P) -> Option<Screen<P>> {
        let (width, height) = pixels.size();
        let (columns, rows) = (width / FONT.character_size.width, height / FONT.character_size.height);
        if columns == 0 || rows < 2 {
            return None;
        }
        let mut canvas = Canvas(pixels);
        let _ = canvas.clear(BinaryColor::Off);
        Some(Screen { canvas, columns, rows, column: 0, row: 0 })
    }

    /// Returns the pixels.
    pub fn into_pixels(self) -> P {
        self.canvas.0
    }

    fn put(&mut self, character: char) {
        if character == '\n' {
            return self.feed();
        }
        if self.column == self.columns {
            self.feed();
        }
        // The font has a replacement for other characters.
        let mut utf8 = [0; 4];
        let (x, y) = (self.column * FONT.character_size.width, self.row * FONT.character_size.height);
        let text = Text::with_baseline(character.encode_utf8(&mut utf8), Point::new(x as i32, y as i32), style(), Baseline::Top);
        let _ = text.draw(&mut self.canvas);
        self.column += 1;
    }

    /// Moves to the next line, and clears the one below.
    fn feed(&mut self) {
        self.column = 0;
        self.row = (self.row + 1) % self.rows;
        let (width, _) = self.canvas.0.size();
        let height = FONT.character_size.height;
        let below = (self.row + 1) % self.rows * height;
        for (x, y) in (below..below + height).flat_map(|y| (0..width).map(move |x| (x, y))) {
            self.canvas.0.set(x, y, false);
        }
    }
}

impl<P: Pixels> fmt::Write for Screen<P> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().filter(|character| *character != '\r').for_each(|character| self.put(character));
        Ok(())
    }
}

fn style() -> MonoTextStyle<'static, BinaryColor> {
    MonoTextStyleBuilder::new().font(FONT).text_color(BinaryColor::On).background_color(BinaryColor::Off).build()
}

/// Pixels as a target of drawing operations, which may reach beyond them.
struct Canvas<P>(P);

impl<P: Pixels> OriginDimensions for Canvas<P> {
    fn size(&self) -> Size {
        let (width, height) = self.0.size();
        Size::new(width, height)
    }
}

impl<P: Pixels> DrawTarget for Canvas<P> {
    type Color = BinaryColor;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<BinaryColor>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        let (width, height) = self.0.size();
        for Pixel(Point { x, y }, color) in pixels {
            if let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y))
                && x < width
                && y < height
            {
                self.0.set(x, y, color.is_on());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write;
    use std::string::String;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    struct Bitmap {
        width: u32,
        height: u32,
        white: Vec<bool>,
    }

    impl Bitmap {
        fn new(width: u32, height: u32) -> Bitmap {
            Bitmap { width, height, white: vec![true; (width * height) as usize] }
        }
    }

    impl Pixels for &mut Bitmap {
        fn size(&self) -> (u32, u32) {
            (self.width, self.height)
        }

        fn set(&mut self, x: u32, y: u32, white: bool) {
            assert!(x < self.width && y < self.height, "{x}, {y} is outside");
            self.white[(y * self.width + x) as usize] = white;
        }
    }

    /// Marks the cells of a screen that have white pixels, a line for each row.
    fn cells(bitmap: &Bitmap) -> Vec<String> {
        let (columns, rows) = (bitmap.width / 9, bitmap.height / 15);
        let is_white = |x: u32, y: u32| bitmap.white[(y * bitmap.width + x) as usize];
        let has = |column: u32, row: u32| (0..15).any(|y| (0..9).any(|x| is_white(column * 9 + x, row * 15 + y)));
        (0..rows).map(|row| (0..columns).map(|column| if has(column, row) { '#' } else { '.' }).collect()).collect()
    }

    fn shown(columns: u32, rows: u32, text: &str) -> Vec<String> {
        let mut bitmap = Bitmap::new(columns * 9 + 4, rows * 15 + 7);
        Screen::new(&mut bitmap).unwrap().write_str(text).unwrap();
        cells(&bitmap)
    }

    #[test]
    fn lines_wrap_and_start_again_at_the_top() {
        assert_eq!(shown(4, 3, ""), ["....", "....", "...."]);
        assert_eq!(shown(4, 3, "a b\nc"), ["#.#.", "#...", "...."]);
        assert_eq!(shown(4, 3, "abcde"), ["####", "#...", "...."]);
        assert_eq!(shown(4, 3, "abcd\r\ne"), ["####", "#...", "...."]);
        // The fourth line replaces the first one, and the second is cleared.
        assert_eq!(shown(4, 3, "a\nbb\nccc\ndd"), ["##..", "....", "###."]);
        assert_eq!(shown(4, 3, "a\u{20ac}b"), ["###.", "....", "...."]);
    }

    #[test]
    fn a_character_has_its_shape() {
        let mut bitmap = Bitmap::new(9, 30);
        Screen::new(&mut bitmap).unwrap().write_str("T").unwrap();
        let rows: Vec<usize> = bitmap.white.chunks(9).take(15).map(|row| row.iter().filter(|white| **white).count()).collect();
        // A bar, then a stem.
        let first = rows.iter().position(|count| *count > 0).unwrap();
        assert!(rows[first] >= 5 && rows[first + 3..first + 8].iter().all(|count| *count == 1), "{rows:?}");
    }

    #[test]
    fn tiny_screens_are_refused() {
        assert!(Screen::new(&mut Bitmap::new(8, 100)).is_none());
        assert!(Screen::new(&mut Bitmap::new(100, 29)).is_none());
        assert!(Screen::new(&mut Bitmap::new(9, 30)).is_some());
    }

    proptest! {
        /// No text reaches pixels outside, and there is always a blank line.
        #[test]
        fn any_text(width in 9u32..80, height in 30u32..90, text in "[ -~\n\u{20ac}]{0,200}") {
            let mut bitmap = Bitmap::new(width, height);
            Screen::new(&mut bitmap).unwrap().write_str(&text).unwrap();
            prop_assert!(cells(&bitmap).iter().any(|row| !row.contains('#')));
        }
    }
}
