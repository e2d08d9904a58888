//! The emulated machine's screen.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

/// The emulator's control socket and a picture of the screen, in the scenario's directory.
const SOCKET: &str = "qmp.sock";
const PICTURE: &str = "screen.ppm";
/// Time-out for the emulator's answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Gives the machine a frame buffer, and the emulator a control socket in `dir`.
pub fn add(command: &mut Command, dir: &Path) {
    let socket = dir.join(SOCKET).display().to_string();
    command.args(["--qemu-arg=-device", "--qemu-arg=ramfb", "--qemu-arg=-qmp"]);
    command.arg(format!("--qemu-arg=unix:{socket},server=on,wait=off"));
}

/// Checks that the screen shows some text on black: the error is a sentence.
pub fn check(dir: &Path) -> Result<(), String> {
    let picture = take(dir).map_err(|error| format!("no picture of the screen: {error}"))?;
    let [white, black] = pixels(&picture).ok_or("the picture of the screen can't be read")?;
    // A line of 60 characters has some 1,000 white pixels.
    match white {
        300..20_000 if black > 100_000 => Ok(()),
        _ => Err(format!("the screen has {white} white and {black} black pixels, which is no text")),
    }
}

/// Has the emulator write a picture, and reads it.
fn take(dir: &Path) -> std::io::Result<Vec<u8>> {
    let path = dir.join(PICTURE);
    let mut socket = UnixStream::connect(dir.join(SOCKET))?;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut answers = BufReader::new(socket.try_clone()?).lines();
    for command in [json!({"execute": "qmp_capabilities"}), json!({"execute": "screendump", "arguments": {"filename": path}})] {
        writeln!(socket, "{command}")?;
        loop {
            let line = answers.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
            let answer: Value = serde_json::from_str(&line)?;
            if let Some(error) = answer.get("error") {
                return Err(std::io::Error::other(error.to_string()));
            }
            // Events and the greeting are printed in between.
            if answer.get("return").is_some() {
                break;
            }
        }
    }
    std::fs::read(path)
}

/// The numbers of white and black pixels of a picture in the format P6 with 8 bits per color.
fn pixels(picture: &[u8]) -> Option<[usize; 2]> {
    // The header is three lines: magic number, width and height, maximum.
    let body = picture.strip_prefix(b"P6\n")?.splitn(3, |byte| *byte == b'\n').nth(2)?;
    let of = |pixel: [u8; 3]| body.as_chunks().0.iter().filter(|found| **found == pixel).count();
    Some([of([255; 3]), of([0; 3])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_are_counted() {
        let picture = [&b"P6\n2 2\n255\n"[..], &[255; 6], &[0; 3], b"\n\n\n"].concat();
        assert_eq!(pixels(&picture), Some([2, 1]));
        assert_eq!(pixels(b"P5\n1 1\n255\n\0"), None);
        assert_eq!(pixels(b"P6\n1 1"), None);
    }
}
