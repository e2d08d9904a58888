//! A window of an emulated machine's RAM in the emulator's process. Bochs allocates RAM in blocks as it is used, so that
//! only Stile's marks tell where a page is.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use stile_snapshot::pages::{PAGE, WINDOW};

/// Pages of a window.
const PAGES: usize = WINDOW / PAGE;
/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// Access to the window of an emulator that this process has started.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: u32,
    memory: File,
    /// The mark of [`stile_wire::Command::OpenWindow`], and the pages' addresses in the process.
    mark: u64,
    pages: [u64; PAGES],
}

impl ProcessMemory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// The process is gone, or this one may not trace it.
    pub fn open(pid: u32) -> io::Result<Self> {
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Self { pid, memory, mark: 0, pages: [0; PAGES] })
    }

    /// Chooses the mark of the next window, which nothing in the machine can guess.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn choose_mark(&mut self) -> io::Result<u64> {
        self.mark = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        Ok(self.mark)
    }

    /// Finds the pages of the window that Stile has marked.
    ///
    /// # Errors
    /// They are not in the process's memory.
    pub fn find(&mut self) -> io::Result<()> {
        let is_there = |(index, at): (usize, &u64)| {
            let mut word = [0; 8];
            self.memory.read_exact_at(&mut word, *at).is_ok() && self.page_of(word) == Some(index)
        };
        // Usually where they were before.
        if self.pages.iter().enumerate().all(is_there) {
            return Ok(());
        }
        let mut found = [None; PAGES];
        let mut chunk = vec![0; CHUNK];
        for range in writable(self.pid)? {
            for start in range.clone().step_by(CHUNK) {
                let length = usize::try_from(range.end - start).unwrap_or(CHUNK).min(CHUNK);
                if self.memory.read_exact_at(&mut chunk[..length], start).is_err() {
                    continue;
                }
                for (page, bytes) in chunk[..length].chunks_exact(PAGE).enumerate() {
                    let index = bytes.first_chunk().and_then(|word| self.page_of(*word));
                    let at = start + (page * PAGE) as u64;
                    // A range may be listed twice, if the process maps memory while its list is read.
                    if index.is_some_and(|index| found[index].replace(at).is_some_and(|other| other != at)) {
                        return Err(io::Error::other("a page of the window is twice in the emulator's memory"));
                    }
                }
            }
        }
        for (to, at) in self.pages.iter_mut().zip(found) {
            *to = at.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the window is not in the emulator's memory"))?;
        }
        Ok(())
    }

    /// The index of the page that begins with this word.
    fn page_of(&self, word: [u8; 8]) -> Option<usize> {
        let index = u64::from_le_bytes(word).wrapping_sub(self.mark);
        usize::try_from(index).ok().filter(|index| *index < PAGES)
    }

    /// Reads the first bytes of the window.
    ///
    /// # Errors
    /// The process is gone.
    pub fn read(&self, to: &mut [u8]) -> io::Result<()> {
        to.chunks_mut(PAGE).zip(self.pages).try_for_each(|(bytes, at)| self.memory.read_exact_at(bytes, at))
    }

    /// Writes them.
    ///
    /// # Errors
    /// As [`ProcessMemory::read`].
    pub fn write(&self, from: &[u8]) -> io::Result<()> {
        from.chunks(PAGE).zip(self.pages).try_for_each(|(bytes, at)| self.memory.write_all_at(bytes, at))
    }
}

/// Writable private memory of a process in ranges of whole pages.
fn writable(pid: u32) -> io::Result<Vec<Range<u64>>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let range = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        words.next().filter(|rights| rights.starts_with("rw"))?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    };
    Ok(maps.lines().filter_map(range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_window_is_found() {
        let mut memory = ProcessMemory::open(std::process::id()).unwrap();
        let mark = memory.choose_mark().unwrap();
        let mut pages = vec![0u8; WINDOW + 2 * PAGE];
        let first = pages.as_ptr().align_offset(PAGE) + PAGE;
        assert!(memory.find().is_err(), "not marked yet");
        // In another order than in the window.
        for index in 0..PAGES {
            let at = first + (index ^ 1) * PAGE;
            pages[at..at + 8].copy_from_slice(&mark.wrapping_add(index as u64).to_le_bytes());
        }
        memory.find().unwrap();
        memory.write(&[0x5a; PAGE + 1]).unwrap();
        // Of the second page, the first byte alone.
        let rest = mark.wrapping_add(1).to_le_bytes()[1];
        assert_eq!((pages[first + PAGE], pages[first], pages[first + 1]), (0x5a, 0x5a, rest));
        pages[first] = 1;
        let mut bytes = [0; PAGE + 1];
        memory.read(&mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[PAGE]), (0x5a, 1));
    }
}
