//! The sandbox of a device's process, which begins once its files are open and mapped: little memory, an empty root directory, an
//! unprivileged user, and few system calls.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;

use libc::c_long;
use rustix::fs::{Gid, Uid};
use rustix::process::{Resource, Rlimit, chroot, fchdir, setrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use seccompiler::{BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, apply_filter};

use crate::{private, tap};

/// User and group of the first device's processes, and of no file.
const FIRST_USER: u32 = 70000;

/// User and group of the processes of the `number`th device, which have no rights, and none of those of other devices' processes.
pub const fn user(number: u32) -> u32 {
    FIRST_USER + number
}

/// Memory that a process may have for its data, and address space that it may add to what it has mapped before. Back ends need less than
/// half: lists of the parts of a request, of which there are 65,535 at most. A disk's buffer is mapped before the limit is set.
const MEMORY: u64 = 16 << 20;

/// System calls that are allowed with any arguments: those that use open files, memory, and the end of the process.
const ALLOWED: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_fdatasync,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_close,
    libc::SYS_futex,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    // A panic, whose signal is below.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Limits the process's memory, so that a client that takes it over takes none from other devices' processes. An allocation beyond the limit
/// ends the process. The files that it serves are mapped before.
///
/// The limit is one of data (getrlimit(2)), which private writable mappings are. [`filter_system_calls`] allows no others; unmapping the
/// window gains a process address space only.
///
/// # Errors
/// The kernel does not say how large the process is.
pub fn limit_memory() -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    // proc(5): a name, and a size in kB.
    let size = |name| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
        value.parse::<u64>().ok()?.checked_mul(1 << 10)
    };
    for (resource, name) in [(Resource::Data, "VmData:"), (Resource::As, "VmSize:")] {
        let used = size(name).ok_or(io::ErrorKind::InvalidData)?;
        let limit = Some(used.saturating_add(MEMORY));
        setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
    }
    Ok(())
}

/// Gives up the process's rights as user `user`: no file can be opened, and root's rights are gone. Only open files remain. For processes with one thread.
///
/// The signal that the process gets when its parent ends is cleared (prctl(2), `PR_SET_PDEATHSIG`).
///
/// # Errors
/// The process is not root's; no directory can be made in `/run`.
pub fn drop_privileges(user: u32) -> io::Result<()> {
    // A directory that is removed stays empty: nobody can make a file in it.
    let path = private::directory()?.join(format!("{}.empty", std::process::id()));
    fs::create_dir(&path)?;
    let root = File::open(&path);
    fs::remove_dir(&path)?;
    fchdir(root?)?;
    chroot(".")?;
    become_user(user)
}

/// Gives up root's rights, capabilities included. See [`drop_privileges`] for what else happens.
///
/// # Errors
/// The process is not root's.
pub fn become_user(user: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    // Takes all capabilities, too (capabilities(7)).
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Restricts the thread to the system calls that serving a device takes, and the `others`, without new privileges. Another system call ends
/// the process.
///
/// # Errors
/// The kernel has no seccomp filters.
pub fn filter_system_calls(others: &[c_long]) -> io::Result<()> {
    let filter = filter(others).map_err(io::Error::other)?;
    apply_filter(&filter).map_err(io::Error::other)
}

fn filter(others: &[c_long]) -> Result<BpfProgram, seccompiler::BackendError> {
    let when = |argument, operator, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
        Ok::<_, seccompiler::BackendError>(vec![SeccompRule::new(vec![condition])?])
    };
    let not_executable = || SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    // Other mappings are no data, whose size is limited.
    let kind = (libc::MAP_TYPE | libc::MAP_GROWSDOWN) as u64;
    let private = SeccompCondition::new(3, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(kind), libc::MAP_PRIVATE as u64)?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().chain(others).map(|number| (*number, Vec::new())).collect();
    rules.insert(libc::SYS_mmap, vec![SeccompRule::new(vec![not_executable()?, private])?]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![not_executable()?])?]);
    // The standard library's check before a file is closed, in builds for debugging.
    rules.insert(libc::SYS_fcntl, when(1, SeccompCmpOp::Eq, libc::F_GETFD as u64)?);
    rules.insert(libc::SYS_ioctl, when(1, SeccompCmpOp::Eq, tap::TUNSETOFFLOAD.into())?);
    // An abort's signal to itself: it has one thread, whose number is the process's. A back end has the same user.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tkill, when(0, SeccompCmpOp::Eq, own)?);
    rules.insert(libc::SYS_tgkill, when(0, SeccompCmpOp::Eq, own)?);
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}
