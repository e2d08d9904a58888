//! A program that carries out the requests of one device: a vhost-user back end, in a process with few rights.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::chown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use libc::c_long;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, apply_filter};

use crate::{jail, memory_limit, private, sandbox};

/// Option of `stile-devices` for the process that becomes a back end.
pub const FLAG: &str = "--back-end";

/// System calls that no back end needs, and that lead out of its process: to other processes, to the kernel, or to new rights. `io_uring`
/// would execute others behind the filter.
const REFUSED: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    libc::SYS_personality,
    libc::SYS_io_uring_setup,
];

/// Files that a back end may have open: `virtiofsd` has one for each file that its client knows.
const FILES: u64 = 1 << 16;

/// Starts a back end, which listens at a socket that it has open, as the user `user`. `command` makes its command line from the number of
/// that file. With a `folder`, it reaches the files of that, whoever owns them, and no others. Returns the connection.
///
/// The process has the user `user`, as this one must have: the kernel then ends it when this one ends.
///
/// # Errors
/// The kernel's.
pub fn start(user: u32, folder: Option<&Path>, command: impl FnOnce(i32) -> Vec<String>) -> io::Result<UnixStream> {
    let root = folder.map(|folder| jail::prepare(user, folder)).transpose()?.unwrap_or_default();
    let path = private::directory()?.join(format!("{}.socket", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    let socket = UnixStream::connect(&path);
    // Nobody else connects.
    fs::remove_file(&path)?;
    fcntl_setfd(&listener, FdFlags::empty())?;
    let mut process = Command::new("/proc/self/exe");
    let root = root.to_string_lossy().into_owned();
    process.args([FLAG.to_owned(), user.to_string(), std::process::id().to_string(), root]).args(command(listener.as_raw_fd()));
    // It ends when this process does, which ends when it does: nobody waits for it.
    drop(process.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    socket
}

/// Becomes a back end: `arguments` are those of [`start`] behind [`FLAG`].
///
/// # Errors
/// The kernel's; there is no such program.
pub fn become_back_end(arguments: &[String]) -> Result<std::convert::Infallible, String> {
    let [user, parent, root, program, rest @ ..] = arguments else { return Err("a back end without a program".to_owned()) };
    let (user, parent) = (user.parse::<u32>().map_err(|error| error.to_string())?, parent.parse().ok().and_then(Pid::from_raw));
    memory_limit::enter(user).map_err(|error| format!("the memory of {program} can't be limited: {error}"))?;
    confine(user, parent, Path::new(root)).map_err(|error| format!("{program} can't be confined: {error}"))?;
    Err(format!("{program} can't be run: {}", Command::new(program).args(rest).exec()))
}

/// Takes this process's rights. With a `root` that is not empty, it has those of [`jail`].
fn confine(user: u32, parent: Option<Pid>, root: &Path) -> io::Result<()> {
    // If memory is short, it is the first process to be ended, and is started again.
    fs::write("/proc/self/oom_score_adj", "1000")?;
    setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum: Some(FILES) })?;
    if root.as_os_str().is_empty() {
        sandbox::become_user(user)?;
    } else {
        jail::enter(root)?;
        jail::keep_rights(|| sandbox::become_user(user))?;
    }
    // Cleared when the user changes.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != parent {
        return Err(io::Error::other("the front end has ended"));
    }
    apply_filter(&filter().map_err(io::Error::other)?).map_err(io::Error::other)
}

/// Refuses system calls, without new privileges. The network is none of a back end's, nor are signals to other processes.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|number| (*number, Vec::new())).collect();
    let others = |argument, operator, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
        Ok::<_, seccompiler::BackendError>(vec![SeccompRule::new(vec![condition])?])
    };
    rules.insert(libc::SYS_socket, others(0, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?);
    // A thread's own directory and mask of permissions, which virtiofsd's have.
    rules.insert(libc::SYS_unshare, others(0, SeccompCmpOp::Ne, libc::CLONE_FS as u64)?);
    let own = u64::from(std::process::id());
    for number in [libc::SYS_kill, libc::SYS_tgkill] {
        rules.insert(number, others(0, SeccompCmpOp::Ne, own)?);
    }
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, refused, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Command line of the back end of a disk with an image in QEMU's format, which listens at file `socket`. Everything that was answered is on
/// stable storage, as its tables, which the program keeps in memory, must be when it dies.
pub fn disk(image: &Path, read_only: bool, socket: i32) -> Vec<String> {
    // A comma separates options.
    let file = image.to_string_lossy().replace(',', ",,");
    let (only, writable) = if read_only { ("on", "off") } else { ("off", "on") };
    vec![
        "qemu-storage-daemon".to_owned(),
        "--blockdev".to_owned(),
        format!("driver=qcow2,node-name=disk,read-only={only},discard=unmap,file.driver=file,file.filename={file}"),
        "--export".to_owned(),
        format!("vhost-user-blk,id=disk,node-name=disk,writable={writable},writethrough=on,addr.type=fd,addr.str={socket}"),
    ]
}

/// Command line of the back end of a folder with a name for its client, which listens at file `socket`. It has the [`jail`]'s root.
///
/// All of the client's users are one here, who is the root of the folder's file system: a process without root's rights can't be several.
pub fn folder(tag: &str, read_only: bool, socket: i32) -> Vec<String> {
    let all = "squash-guest:0:0:4294967295";
    let mut command = vec![
        "/usr/libexec/virtiofsd".to_owned(),
        format!("--fd={socket}"),
        format!("--shared-dir={}", jail::FOLDER),
        format!("--tag={tag}"),
        // The root directory is this process's, and so are its rights and limits.
        "--sandbox=none".to_owned(),
        "--rlimit-nofile=0".to_owned(),
        // Changes by others show at once.
        "--cache=never".to_owned(),
        format!("--translate-uid={all}"),
        format!("--translate-gid={all}"),
        "--log-level=error".to_owned(),
    ];
    command.extend(read_only.then(|| "--readonly".to_owned()));
    command
}

/// Makes a file that of a device's user.
///
/// # Errors
/// There is no such file.
pub fn give(file: &Path, user: u32) -> io::Result<()> {
    chown(file, Some(user), Some(user))
}
