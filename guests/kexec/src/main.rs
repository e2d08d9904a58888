//! Starts another kernel by kexec: `kexec KERNEL INITRD ARGUMENTS`. Does not return unless it fails. With `--crash` as the first
//! argument it only loads the kernel, which then starts when this one crashes.

use std::arch::asm;
use std::env;
use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::process::ExitCode;

/// System calls of Linux for x86-64 (`arch/x86/entry/syscalls/syscall_64.tbl`).
const REBOOT: usize = 169;
const KEXEC_FILE_LOAD: usize = 320;
/// The first three arguments of `reboot` (`include/uapi/linux/reboot.h`): two magic numbers, and to start the loaded kernel.
const REBOOT_BY_KEXEC: [usize; 3] = [0xfee1_dead, 672_274_793, 0x4558_4543];
/// Flag of `kexec_file_load` (`include/uapi/linux/kexec.h`): KEXEC_FILE_ON_CRASH.
const ON_CRASH: usize = 2;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let on_crash = arguments.first().is_some_and(|first| first == "--crash");
    if on_crash {
        arguments.remove(0);
    }
    let [kernel, initrd, command_line] = &arguments[..] else {
        eprintln!("usage: kexec [--crash] KERNEL INITRD ARGUMENTS");
        return ExitCode::from(2);
    };
    let done = load(kernel, initrd, command_line, on_crash).and_then(|()| if on_crash { Ok(()) } else { start() });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kexec: {error}");
            ExitCode::FAILURE
        }
    }
}

fn load(kernel: &str, initrd: &str, command_line: &str, on_crash: bool) -> Result<(), Error> {
    let (kernel, initrd) = (File::open(kernel)?, File::open(initrd)?);
    let command_line = CString::new(command_line)?;
    let length = command_line.as_bytes_with_nul().len();
    let files = [kernel.as_raw_fd(), initrd.as_raw_fd()].map(|file| file as usize);
    let flags = if on_crash { ON_CRASH } else { 0 };
    system_call(KEXEC_FILE_LOAD, [files[0], files[1], length, command_line.as_ptr() as usize, flags])
}

fn start() -> Result<(), Error> {
    let [first, second, command] = REBOOT_BY_KEXEC;
    system_call(REBOOT, [first, second, command, 0, 0])?;
    Err(Error::other("the kernel was loaded, and did not start"))
}

/// A system call of at most five arguments.
fn system_call(number: usize, arguments: [usize; 5]) -> Result<(), Error> {
    let result: isize;
    // SAFETY: both calls only read the command line, which outlives them, and change no memory of this program.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, readonly),
        );
    }
    if result < 0 { Err(Error::from_raw_os_error(-result as i32)) } else { Ok(()) }
}
