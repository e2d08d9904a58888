//! Files of the boot medium, accessed through firmware before boot services end. The rules of [`super`] apply.

use core::mem::ManuallyDrop;
use core::ops::Range;
use core::slice;

use stile_config::boot::{NAME, VMS};
use stile_firmware::boot_files::{self, Block, LONGEST_NAME, Writer};
use stile_firmware::configuration::BootMedium;
use uefi_raw::protocol::file_system::{FileAttribute, FileInfo, FileMode, FileProtocolV1, FileSystemInfo, SimpleFileSystemProtocol};
use uefi_raw::protocol::loaded_image::LoadedImageProtocol;
use uefi_raw::table::boot::{AllocateType, BootServices, MemoryType};
use uefi_raw::{Boolean, Handle, Status};

use super::{PAGE, protocol};

/// Maximum number of entries of the folder.
pub const MOST_ENTRIES: usize = 10_000;

/// Size of firmware's description of a file, with the longest name, in words of eight bytes.
const INFO: usize = (size_of::<FileInfo>() + 2 * (LONGEST_NAME + 1)).div_ceil(8);

/// An open file or folder, which is closed on drop. The pointer is valid: it comes from a successful open.
pub struct Open(*mut FileProtocolV1);

impl Open {
    /// The root folder of the file system from which firmware loaded the program `handle`.
    pub fn root(boot: &BootServices, handle: Handle) -> Option<Open> {
        let image = protocol::<LoadedImageProtocol>(boot, handle, &LoadedImageProtocol::GUID)?;
        // SAFETY: firmware returned the protocol, whose device stays valid until boot services end.
        let volume = protocol::<SimpleFileSystemProtocol>(boot, unsafe { (*image).device_handle }, &SimpleFileSystemProtocol::GUID)?;
        let mut root = core::ptr::null_mut();
        // SAFETY: boot services have not ended, and firmware returned the protocol.
        let status = unsafe { ((*volume).open_volume)(volume, &mut root) };
        (status == Status::SUCCESS && !root.is_null()).then(|| Open(root))
    }

    /// Opens a file or folder of this folder. `name` is NUL-terminated.
    ///
    /// # Errors
    /// Firmware's status.
    pub fn open(&self, name: &[u16], mode: FileMode) -> Result<Open, Status> {
        if name.last() != Some(&0) {
            return Err(Status::INVALID_PARAMETER);
        }
        let mut file = core::ptr::null_mut();
        // SAFETY: firmware opened the folder; the name is NUL-terminated.
        let status = unsafe { ((*self.0).open)(self.0, &mut file, name.as_ptr(), mode, FileAttribute::empty()) };
        match status {
            Status::SUCCESS if file.is_null() => Err(Status::DEVICE_ERROR),
            Status::SUCCESS => Ok(Open(file)),
            status => Err(status),
        }
    }

    /// Reads the file's bytes up to its end, or as many as there is room for. Returns their number.
    pub fn read(&self, to: &mut [u8]) -> Option<usize> {
        let mut length = 0;
        while let Some(rest) = to.get_mut(length..).filter(|rest| !rest.is_empty()) {
            let mut size = rest.len();
            // SAFETY: firmware opened the file, and the buffer has `size` bytes.
            let status = unsafe { ((*self.0).read)(self.0, &mut size, rest.as_mut_ptr().cast()) };
            match (status, size) {
                (Status::SUCCESS, 0) => break,
                (Status::SUCCESS, size) => length += size,
                _ => return None,
            }
        }
        Some(length)
    }

    /// Writes bytes to the file and its medium. Returns whether all are there.
    pub fn write(&self, bytes: &[u8]) -> bool {
        let mut size = bytes.len();
        // SAFETY: firmware opened the file, and `bytes` has `size` bytes.
        let status = unsafe { ((*self.0).write)(self.0, &mut size, bytes.as_ptr().cast()) };
        // SAFETY: firmware opened the file.
        let flushed = unsafe { ((*self.0).flush)(self.0) };
        status == Status::SUCCESS && size == bytes.len() && flushed == Status::SUCCESS
    }

    /// Deletes the file.
    pub fn delete(self) {
        let file = ManuallyDrop::new(self);
        // SAFETY: firmware opened the file, which this closes, too.
        let _ = unsafe { ((*file.0).delete)(file.0) };
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        let mut size = u64::MAX;
        // SAFETY: firmware opened the file. This position is its end (UEFI Specification, EFI_FILE_PROTOCOL.SetPosition).
        let status = unsafe { ((*self.0).set_position)(self.0, u64::MAX) };
        // SAFETY: firmware opened the file.
        status == Status::SUCCESS && unsafe { ((*self.0).get_position)(self.0, &mut size) } == Status::SUCCESS && size == 0
    }

    /// Whether it is a folder. `None` if firmware can't tell.
    fn is_folder(&self) -> Option<bool> {
        let mut buffer = [0_u64; INFO];
        let mut size = size_of_val(&buffer);
        // SAFETY: firmware opened it, and the buffer has `size` bytes.
        let status = unsafe { ((*self.0).get_info)(self.0, &FileInfo::ID, &mut size, buffer.as_mut_ptr().cast()) };
        // SAFETY: the buffer is longer than the structure, aligned, and of bytes that were written; any bytes are a valid description.
        (status == Status::SUCCESS).then(|| unsafe { (*buffer.as_ptr().cast::<FileInfo>()).attribute.contains(FileAttribute::DIRECTORY) })
    }

    /// Whether the file system of this folder can't be written to, as on a CD-ROM.
    pub fn is_read_only(&self) -> bool {
        /// The information, and its label, whose length firmware chooses.
        #[repr(C, align(8))]
        struct Buffer([u8; 256]);
        let mut buffer = Buffer([0; 256]);
        let mut size = buffer.0.len();
        // SAFETY: firmware opened the folder, and the buffer has `size` bytes.
        let status = unsafe { ((*self.0).get_info)(self.0, &FileSystemInfo::ID, &mut size, buffer.0.as_mut_ptr().cast()) };
        // SAFETY: the buffer is longer than the structure, aligned, and of bytes that were written; any byte is a boolean of UEFI's.
        status != Status::SUCCESS || unsafe { (*buffer.0.as_ptr().cast::<FileSystemInfo>()).read_only } != Boolean::FALSE
    }

    /// Calls `each` for the files of this folder that `text` names, with their names, NUL included, and lengths. Returns whether
    /// the list is complete: false if firmware fails before the folder's end, or the folder has over [`MOST_ENTRIES`].
    fn each_named(&self, text: &[u8], mut each: impl FnMut(&[u16], u64)) -> bool {
        // SAFETY: firmware opened the folder, which it begins to list again from there.
        let _ = unsafe { ((*self.0).set_position)(self.0, 0) };
        for _ in 0..=MOST_ENTRIES {
            let mut buffer = [0_u64; INFO];
            let mut size = size_of_val(&buffer);
            // SAFETY: firmware opened the folder, and the buffer has `size` bytes.
            let status = unsafe { ((*self.0).read)(self.0, &mut size, buffer.as_mut_ptr().cast()) };
            // A buffer that is too small ends the list, too: firmware would repeat that error forever.
            if status != Status::SUCCESS || size < size_of::<FileInfo>() {
                return status == Status::SUCCESS && size == 0;
            }
            // SAFETY: firmware wrote a description of a file, whose alignment the buffer has.
            let info = unsafe { &*buffer.as_ptr().cast::<FileInfo>() };
            let end = size.min(size_of_val(&buffer));
            // SAFETY: the name follows the description, within the buffer.
            let name = unsafe {
                let start = buffer.as_ptr().byte_add(size_of::<FileInfo>()).cast::<u16>();
                slice::from_raw_parts(start, (end - size_of::<FileInfo>()) / 2)
            };
            let length = name.iter().position(|&letter| letter == 0);
            if let (Some(name), Some(with_nul)) =
                (length.and_then(|length| name.get(..length)), length.and_then(|length| name.get(..=length)))
                && !info.attribute.contains(FileAttribute::DIRECTORY)
                && boot_files::is_named(text, name)
            {
                each(with_nul, info.file_size);
            }
        }
        false
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: firmware opened it, and nothing uses it any more.
        let _ = unsafe { ((*self.0).close)(self.0) };
    }
}

/// Reads the boot medium of the program `handle`: its configuration file into `to`, and the files named there into memory up to `last`.
/// `None` without a configuration file.
pub fn read_medium<'t>(boot: &BootServices, handle: Handle, to: &'t mut [u8], last: u64) -> Option<BootMedium<'t>> {
    let root = Open::root(boot, handle)?;
    let file = match root.open(&nul_terminated::<{ NAME.len() + 1 }>(NAME), FileMode::READ) {
        Ok(file) if file.is_folder() == Some(false) => Some(file),
        Err(Status::NOT_FOUND) => return None,
        Ok(_) | Err(_) => None,
    };
    let length = file.and_then(|file| file.read(to));
    let to: &'t [u8] = to;
    let text = length.and_then(|length| to.get(..length));
    Some(BootMedium { text, files: text.and_then(|text| read_named(boot, &root, text, last)) })
}

/// Returns an ASCII name of `N - 1` characters as NUL-terminated UTF-16.
fn nul_terminated<const N: usize>(name: &str) -> [u16; N] {
    let mut utf16 = [0; N];
    utf16.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = u16::from(byte));
    utf16
}

/// Reads the files of the folder `VMS` that `text`, the configuration file, names. Returns the memory that has them: [`boot_files`]. `None`
/// if there are none.
fn read_named(boot: &BootServices, root: &Open, text: &[u8], last: u64) -> Option<Block> {
    let folder = match root.open(&nul_terminated::<{ VMS.len() + 1 }>(VMS), FileMode::READ) {
        Ok(folder) => folder,
        Err(Status::NOT_FOUND) => return None,
        Err(_) => return Some(Block::Unreadable),
    };
    match folder.is_folder() {
        Some(true) => {}
        Some(false) => return None,
        None => return Some(Block::Unreadable),
    }
    let (mut size, mut names) = (0, 0);
    if !folder.each_named(text, |_, length| (size, names) = (boot_files::room_with(size, length), boot_files::room_with(names, 0))) {
        return Some(Block::Unreadable);
    }
    if size == 0 {
        return None;
    }
    let whole = allocate(boot, size, last);
    let Some(block) = whole.clone().or_else(|| allocate(boot, names, last)) else { return Some(Block::Missing(size)) };
    // SAFETY: firmware allocated these pages, in its identity mapping.
    let mut files = Writer::new(unsafe { slice::from_raw_parts_mut(block.start as *mut u8, (block.end - block.start) as usize) });
    let are_all = folder.each_named(text, |name, length| {
        let named = name.get(..name.len() - 1).unwrap_or(name);
        if whole.is_none() {
            files.add_unread(named, size);
        } else {
            files.add(named, length, |bytes| folder.open(name, FileMode::READ).is_ok_and(|file| file.read(bytes) == Some(bytes.len())));
        }
    });
    Some(if are_all { Block::At(block) } else { Block::Unreadable })
}

/// Allocates `size` bytes, whole pages, up to the address `last`. None at the address 0.
fn allocate(boot: &BootServices, size: u64, last: u64) -> Option<Range<u64>> {
    let mut start = last;
    let pages = usize::try_from(size / PAGE).ok()?;
    // SAFETY: this runs before boot services are exited, so that the table is valid.
    let status = unsafe { (boot.allocate_pages)(AllocateType::MAX_ADDRESS, MemoryType::LOADER_DATA, pages, &mut start) };
    (status == Status::SUCCESS && start != 0).then(|| start..start + size)
}
