//! The emulated machine's screen.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::slowdown::stretched;
use stile_screen::{Pixels, Screen};

/// The emulator's control socket and a picture of the screen, in the scenario's directory.
const SOCKET: &str = "qmp.sock";
const PICTURE: &str = "screen.ppm";
/// Time-out for the emulator's answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Gives the machine a frame buffer, and the emulator a control socket in `dir`.
pub fn add(command: &mut Command, dir: &Path) {
    command.args(["--qemu-arg=-device", "--qemu-arg=ramfb"]);
    command.args(control(dir).map(|argument| format!("--qemu-arg={argument}")));
}

/// Checks that the screen of the machine whose control socket is in `dir` shows lines that begin with these texts, in this order: the error is
/// a sentence.
pub fn check(dir: &Path, lines: &[&str]) -> Result<(), String> {
    let picture = take(dir).map_err(|error| format!("no picture of the screen: {error}"))?;
    let picture = Picture::read(&picture).ok_or("the picture of the screen can't be read")?;
    let mut row = 0;
    for line in lines {
        let expected = Drawn::new(line);
        let rows = picture.height / CELL_HEIGHT;
        let found = (row..rows).find(|&row| picture.shows(&expected, row * CELL_HEIGHT));
        row = 1 + found.ok_or_else(|| format!("the screen has no line {line:?} after {row} others"))?;
    }
    Ok(())
}

/// The control socket's arguments for the emulator.
pub fn control(dir: &Path) -> [String; 2] {
    ["-qmp".into(), format!("unix:{},server=on,wait=off", dir.join(SOCKET).display())]
}

/// Has the emulator write a picture, and reads it.
fn take(dir: &Path) -> std::io::Result<Vec<u8>> {
    let path = dir.join(PICTURE);
    execute(dir, [json!({"execute": "screendump", "arguments": {"filename": path}})])?;
    std::fs::read(path)
}

/// Gives commands to the monitor of the emulator whose control socket is in `dir`.
///
/// # Errors
/// It does not answer, or refuses one.
pub fn tell(dir: &Path, commands: &[&str]) -> std::io::Result<()> {
    execute(dir, commands.iter().map(|line| monitor(line))).map(drop)
}

/// Gives a command to that monitor, and returns the answer.
///
/// # Errors
/// It does not answer, or refuses the command.
pub fn ask(dir: &Path, command: &str) -> std::io::Result<String> {
    Ok(execute(dir, [monitor(command)])?.as_str().unwrap_or_default().to_owned())
}

fn monitor(line: &str) -> Value {
    json!({"execute": "human-monitor-command", "arguments": {"command-line": line}})
}

/// Has the emulator execute commands, one after the other, and returns the last one's result.
fn execute(dir: &Path, commands: impl IntoIterator<Item = Value>) -> std::io::Result<Value> {
    let mut socket = UnixStream::connect(dir.join(SOCKET))?;
    socket.set_read_timeout(Some(stretched(LIMIT)))?;
    let mut answers = BufReader::new(socket.try_clone()?).lines();
    let mut result = Value::Null;
    for command in [json!({"execute": "qmp_capabilities"})].into_iter().chain(commands) {
        writeln!(socket, "{command}")?;
        loop {
            let line = answers.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
            let answer: Value = serde_json::from_str(&line)?;
            if let Some(error) = answer.get("error") {
                return Err(std::io::Error::other(error.to_string()));
            }
            // Events and the greeting are printed in between.
            if let Some(value) = answer.get("return") {
                result = value.clone();
                break;
            }
        }
    }
    Ok(result)
}

/// Cells of the font (`stile_screen`).
const CELL_WIDTH: usize = 9;
const CELL_HEIGHT: usize = 15;

/// A picture in the format P6 with 8 bits per color.
struct Picture<'a> {
    width: usize,
    height: usize,
    pixels: &'a [[u8; 3]],
}

impl<'a> Picture<'a> {
    fn read(bytes: &'a [u8]) -> Option<Picture<'a>> {
        // The header is three lines: magic number, width and height, maximum.
        let mut parts = bytes.strip_prefix(b"P6\n")?.splitn(3, |byte| *byte == b'\n');
        let size = std::str::from_utf8(parts.next()?).ok()?;
        let (width, height) = size.split_once(' ')?;
        let (width, height) = (width.parse().ok()?, height.parse().ok()?);
        let pixels = parts.nth(1)?.as_chunks().0;
        (pixels.len() == usize::checked_mul(width, height)?).then_some(Picture { width, height, pixels })
    }

    /// Whether it has a text at its left edge, `top` pixels below the upper one.
    fn shows(&self, text: &Drawn, top: usize) -> bool {
        let places = (0..CELL_HEIGHT).flat_map(|y| (0..text.width).map(move |x| (x, y)));
        let is_same = |(x, y): (usize, usize)| {
            let expected = if text.white[y * text.width + x] { [255; 3] } else { [0; 3] };
            x < self.width && self.pixels[(top + y) * self.width + x] == expected
        };
        places.into_iter().all(is_same)
    }
}

/// A line of text as Stile draws it.
struct Drawn {
    width: usize,
    white: Vec<bool>,
}

impl Drawn {
    fn new(text: &str) -> Drawn {
        let width = CELL_WIDTH * text.len();
        // A screen has two lines at least.
        let pixels = Drawn { width, white: vec![false; 2 * CELL_HEIGHT * width] };
        let mut screen = Screen::new(pixels).expect("the text has a character");
        let _ = screen.write_str(text);
        screen.into_pixels()
    }
}

impl Pixels for Drawn {
    fn size(&self) -> (u32, u32) {
        (self.width as u32, 2 * CELL_HEIGHT as u32)
    }

    fn set(&mut self, x: u32, y: u32, white: bool) {
        self.white[y as usize * self.width + x as usize] = white;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found() {
        let mut pixels = vec![[0; 3]; 40 * 50];
        for (y, line) in (CELL_HEIGHT..).zip(Drawn::new("Ab").white.chunks(18).take(CELL_HEIGHT)) {
            for (x, white) in line.iter().enumerate() {
                pixels[y * 40 + x] = if *white { [255; 3] } else { [0; 3] };
            }
        }
        let file = [&b"P6\n40 50\n255\n"[..], pixels.as_flattened()].concat();
        let picture = Picture::read(&file).unwrap();
        let shows = |text, top| picture.shows(&Drawn::new(text), top);
        assert_eq!(
            [shows("Ab", 15), shows("A", 15), shows("Ab", 0), shows("Ac", 15), shows("Ab   ", 15)],
            [true, true, false, false, false]
        );
        assert!(Picture::read(&file[..file.len() - 1]).is_none());
        assert!(Picture::read(b"P5\n1 1\n255\n\0").is_none());
        assert!(Picture::read(b"P6\n1 1").is_none());
    }
}
