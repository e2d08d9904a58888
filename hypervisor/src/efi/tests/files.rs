//! Files of the boot medium, also of faulty ones.

use uefi_raw::protocol::file_system::{FileAttribute, FileInfo, FileMode, FileProtocolV1, SimpleFileSystemProtocol};
use uefi_raw::protocol::loaded_image::LoadedImageProtocol;
use uefi_raw::table::boot::{AllocateType, MemoryType};

use stile_firmware::boot_files::{Block, Unread, files};
use stile_firmware::configuration::BootMedium;

use super::*;
use crate::efi::files::{MOST_ENTRIES, read_medium};

/// A file of simulated firmware.
#[derive(Clone)]
enum File {
    /// A folder's entries, and their names.
    Folder(Vec<(&'static str, File)>),
    /// A file's bytes, and its length by the directory entry.
    Bytes(Vec<u8>, u64),
    /// Firmware can't open it.
    Closed,
    /// Firmware can't read it.
    Faulty,
    /// Firmware opens it, but can't describe it.
    Unknown,
    /// A folder after whose first entries firmware fails.
    Cut(Vec<(&'static str, File)>),
}

/// An open file: its services, its content, and the position in it.
#[repr(C)]
struct Node {
    services: FileProtocolV1,
    file: File,
    at: usize,
}

fn node(file: File) -> *mut FileProtocolV1 {
    let services = FileProtocolV1 { open, close, read, get_info, set_position, ..table() };
    Box::into_raw(Box::new(Node { services, file, at: 0 })).cast()
}

/// The open file of a call.
unsafe fn this<'a>(this: *mut FileProtocolV1) -> &'a mut Node {
    // SAFETY: `node` made it, and nothing else refers to it during the call.
    unsafe { &mut *this.cast::<Node>() }
}

unsafe extern "efiapi" fn open(
    folder: *mut FileProtocolV1,
    to: *mut *mut FileProtocolV1,
    name: *const u16,
    _: FileMode,
    _: FileAttribute,
) -> Status {
    // SAFETY: the name is NUL-terminated.
    let letters: Vec<u16> = (0..).map(|at| unsafe { *name.add(at) }).take_while(|&letter| letter != 0).collect();
    let name = String::from_utf16(&letters).unwrap();
    // SAFETY: the folder is open.
    let (File::Folder(entries) | File::Cut(entries)) = &unsafe { this(folder) }.file else { return Status::NOT_FOUND };
    match entries.iter().find(|(other, _)| *other == name) {
        None => Status::NOT_FOUND,
        Some((_, File::Closed)) => Status::VOLUME_CORRUPTED,
        Some((_, file)) => {
            // SAFETY: the caller has a place for it.
            unsafe { *to = node(file.clone()) };
            Status::SUCCESS
        }
    }
}

unsafe extern "efiapi" fn close(file: *mut FileProtocolV1) -> Status {
    // SAFETY: `node` made it, and it is closed once.
    drop(unsafe { Box::from_raw(file.cast::<Node>()) });
    Status::SUCCESS
}

/// Writes the description of a file. Returns the status and its size.
unsafe fn describe(name: &str, file: &File, to: *mut c_void, room: usize) -> (Status, usize) {
    let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
    let size = size_of::<FileInfo>() + 2 * name.len();
    if size > room {
        return (Status::BUFFER_TOO_SMALL, size);
    }
    let (length, attribute) = match file {
        File::Folder(_) | File::Cut(_) => (0, FileAttribute::DIRECTORY),
        File::Bytes(_, length) => (*length, FileAttribute::empty()),
        File::Closed | File::Faulty | File::Unknown => (10, FileAttribute::empty()),
    };
    // SAFETY: the buffer has room for the description and the name behind it.
    unsafe {
        to.cast::<u8>().write_bytes(0, size_of::<FileInfo>());
        (*to.cast::<FileInfo>()).file_size = length;
        (*to.cast::<FileInfo>()).attribute = attribute;
        to.byte_add(size_of::<FileInfo>()).cast::<u16>().copy_from_nonoverlapping(name.as_ptr(), name.len());
    }
    (Status::SUCCESS, size)
}

unsafe extern "efiapi" fn read(file: *mut FileProtocolV1, size: *mut usize, to: *mut c_void) -> Status {
    // SAFETY: the file is open.
    let node = unsafe { this(file) };
    // SAFETY: the caller gives the buffer's size.
    let size = unsafe { &mut *size };
    match &node.file {
        File::Cut(entries) if node.at == entries.len() => Status::VOLUME_CORRUPTED,
        File::Folder(entries) | File::Cut(entries) => {
            let Some((name, file)) = entries.get(node.at) else {
                *size = 0;
                return Status::SUCCESS;
            };
            // SAFETY: the buffer has `size` bytes.
            let (status, length) = unsafe { describe(name, file, to, *size) };
            (*size, node.at) = (length, node.at + 1);
            status
        }
        File::Bytes(bytes, _) => {
            let rest = bytes.get(node.at..).unwrap_or_default();
            *size = rest.len().min(*size);
            // SAFETY: the buffer has as many bytes.
            unsafe { to.cast::<u8>().copy_from_nonoverlapping(rest.as_ptr(), *size) };
            node.at += *size;
            Status::SUCCESS
        }
        File::Closed | File::Faulty | File::Unknown => Status::DEVICE_ERROR,
    }
}

unsafe extern "efiapi" fn get_info(file: *mut FileProtocolV1, _: *const Guid, size: *mut usize, to: *mut c_void) -> Status {
    // SAFETY: the file is open.
    if matches!(unsafe { this(file) }.file, File::Unknown) {
        return Status::DEVICE_ERROR;
    }
    // SAFETY: the file is open, and the buffer has `size` bytes.
    unsafe {
        let (status, length) = describe("", &this(file).file, to, *size);
        *size = length;
        status
    }
}

unsafe extern "efiapi" fn set_position(file: *mut FileProtocolV1, at: u64) -> Status {
    // SAFETY: the file is open.
    unsafe { this(file).at = at as usize };
    Status::SUCCESS
}

/// The file system of the program that is started.
#[repr(C)]
struct Medium {
    services: SimpleFileSystemProtocol,
    root: File,
}

unsafe extern "efiapi" fn open_volume(this: *mut SimpleFileSystemProtocol, root: *mut *mut FileProtocolV1) -> Status {
    // SAFETY: `text_and_files` made the medium.
    unsafe { *root = node((*this.cast::<Medium>()).root.clone()) };
    Status::SUCCESS
}

/// The program's protocol, and its medium's, for a handle that has both.
extern "efiapi" fn of_program(handle: Handle, guid: *const Guid, found: *mut *mut c_void) -> Status {
    // SAFETY: the handle is the program's protocol.
    let device = unsafe { (*handle.cast::<LoadedImageProtocol>()).device_handle };
    // SAFETY: the caller gives both.
    unsafe { *found = if *guid == LoadedImageProtocol::GUID { handle } else { device } };
    Status::SUCCESS
}

/// The device's handle leads to itself.
extern "efiapi" fn handle_protocol(handle: Handle, guid: *const Guid, found: *mut *mut c_void) -> Status {
    // SAFETY: the caller gives both.
    unsafe {
        if *guid == SimpleFileSystemProtocol::GUID {
            *found = handle;
            return Status::SUCCESS;
        }
    }
    of_program(handle, guid, found)
}

extern "efiapi" fn allocate_pages(_: AllocateType, _: MemoryType, count: usize, to: *mut u64) -> Status {
    if count > 1 << 20 {
        return Status::OUT_OF_RESOURCES;
    }
    let pages: &mut [[u64; 512]] = vec![[!0; 512]; count].leak();
    // SAFETY: the caller has a place for it.
    unsafe { *to = pages.as_ptr() as u64 };
    Status::SUCCESS
}

/// Names of files, and their bytes.
type Named = Vec<(String, Result<Vec<u8>, Unread>)>;

/// Calls `work` with what is read of a medium.
fn with_medium<T>(root: Vec<(&'static str, File)>, work: impl FnOnce(Option<&BootMedium<'_>>) -> T) -> T {
    let services = SimpleFileSystemProtocol { open_volume, ..table() };
    let mut medium = Medium { services, root: File::Folder(root) };
    let mut program = LoadedImageProtocol { device_handle: (&raw mut medium).cast(), unload: None, ..table() };
    let boot = BootServices { handle_protocol, allocate_pages, ..table() };
    let mut buffer = vec![0; TEXT];
    work(read_medium(&boot, (&raw mut program).cast(), &mut buffer, u64::MAX).as_ref())
}

/// The configuration file of a medium, and the files that it names. The outer `None` if the medium has no such file.
fn read_all(root: Vec<(&'static str, File)>) -> Option<(Option<Vec<u8>>, Named)> {
    with_medium(root, |found| {
        let found = found?;
        let block = match &found.files {
            // SAFETY: `allocate_pages` made it.
            Some(Block::At(range)) => unsafe { slice::from_raw_parts(range.start as *const u8, (range.end - range.start) as usize) },
            Some(Block::Missing(_) | Block::Unreadable) | None => &[],
        };
        let files = files(block).map(|file| (file.name.to_owned(), file.bytes.map(<[u8]>::to_vec))).collect();
        Some((found.text.map(<[u8]>::to_vec), files))
    })
}

fn bytes(of: &[u8]) -> File {
    File::Bytes(of.to_vec(), of.len() as u64)
}

const NAMES: &[u8] = b"[[vm]]\nkernel = \"Image\"\ninitrd = \"initrd\"\n";

#[test]
fn a_medium_has_a_configuration_and_its_files() {
    assert_eq!(read_all(vec![]), None);
    assert_eq!(read_all(vec![("STILE.TOML", bytes(NAMES))]), Some((Some(NAMES.to_vec()), vec![])));
    let vms = File::Folder(vec![("other", bytes(b"o")), ("image", bytes(&[7; 5000])), ("Initrd", bytes(b""))]);
    let expected = vec![("image".to_owned(), Ok(vec![7; 5000])), ("Initrd".to_owned(), Ok(vec![]))];
    assert_eq!(read_all(vec![("STILE.TOML", bytes(NAMES)), ("VMS", vms)]), Some((Some(NAMES.to_vec()), expected)));
}

#[test]
fn a_configuration_that_is_no_file_or_faulty_is_not_missing() {
    for file in [File::Folder(vec![("x", bytes(b"x"))]), File::Closed, File::Faulty, File::Unknown] {
        assert_eq!(read_all(vec![("STILE.TOML", file)]), Some((None, vec![])));
    }
    // Longer ones are known by one byte more than the longest has.
    for (length, expected) in [(LONGEST, LONGEST), (LONGEST + 1, LONGEST + 1), (LONGEST + 2, LONGEST + 1)] {
        let found = read_all(vec![("STILE.TOML", bytes(&vec![b'#'; length]))]);
        assert_eq!(found.and_then(|(text, _)| text).map(|text| text.len()), Some(expected));
    }
}

#[test]
fn files_that_change_or_fail_are_not_read() {
    let of = |file: File| {
        let vms = File::Folder(vec![("Image", file), ("initrd", bytes(b"i"))]);
        read_all(vec![("STILE.TOML", bytes(NAMES)), ("VMS", vms)]).map(|(_, files)| files)
    };
    let initrd = ("initrd".to_owned(), Ok(b"i".to_vec()));
    let image = |result| ("Image".to_owned(), result);
    // It is shorter than its folder says, or firmware fails; a longer one is as long as the folder says; folders are no files.
    assert_eq!(of(File::Bytes(vec![1; 100], 101)), Some(vec![image(Err(Unread::Broken)), initrd.clone()]));
    assert_eq!(of(File::Faulty), Some(vec![image(Err(Unread::Broken)), initrd.clone()]));
    assert_eq!(of(File::Closed), Some(vec![image(Err(Unread::Broken)), initrd.clone()]));
    assert_eq!(of(File::Bytes(vec![1; 100], 99)), Some(vec![image(Ok(vec![1; 99])), initrd.clone()]));
    assert_eq!(of(File::Folder(vec![])), Some(vec![initrd]));
    // More memory than there is: neither is read.
    assert_eq!(of(File::Bytes(vec![], 1 << 40)).map(|files| files.iter().filter(|(_, bytes)| bytes.is_err()).count()), Some(2));
    // A file in the folder's place, whose bytes look like an entry.
    let mut entry = vec![0_u64; 10];
    entry[1] = 8;
    let entry: Vec<u8> = entry.into_iter().flat_map(u64::to_le_bytes).chain(*b"I\0m\0a\0g\0e\0\0\0").collect();
    assert_eq!(read_all(vec![("STILE.TOML", bytes(NAMES)), ("VMS", bytes(&entry))]), Some((Some(NAMES.to_vec()), vec![])));
}

#[test]
fn a_folder_that_firmware_cannot_read_is_not_missing() {
    let of = |vms: Option<File>| {
        let vms = vms.map(|vms| ("VMS", vms));
        with_medium([("STILE.TOML", bytes(NAMES))].into_iter().chain(vms).collect(), |found| found.map(|found| found.files.clone()))
    };
    let entries = vec![("Image", bytes(b"new")), ("other", bytes(b"o"))];
    assert_eq!((of(None), of(Some(bytes(b"no folder"))), of(Some(File::Folder(vec![])))), (Some(None), Some(None), Some(None)));
    for folder in [File::Closed, File::Unknown, File::Cut(vec![]), File::Cut(entries)] {
        assert_eq!(of(Some(folder)), Some(Some(Block::Unreadable)));
    }
    let most = |count| File::Folder(vec![("other", bytes(b"o")); count]);
    assert_eq!((of(Some(most(MOST_ENTRIES))), of(Some(most(MOST_ENTRIES + 1)))), (Some(None), Some(Some(Block::Unreadable))));
}
