//! System calls that the standard library does not offer. The engine's only `unsafe` code.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;
use rustix::process::Signal;

/// Makes the child lead its own process group, die with the thread that starts it
/// (PR_SET_PDEATHSIG(2const)) and keep `inherited` open across exec.
pub fn contain(command: &mut Command, inherited: Option<&impl AsRawFd>) {
    let inherited: Option<RawFd> = inherited.map(AsRawFd::as_raw_fd);
    let prepare = move || -> io::Result<()> {
        rustix::process::setpgid(None, None)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(fd) = inherited {
            // SAFETY: the caller of `contain` keeps the descriptor open until the child is spawned.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: `prepare` makes three system calls and touches no memory of the parent's.
    unsafe { command.pre_exec(prepare) };
}

/// Sends SIGKILL to every process of the group that `leader` leads; a group that is gone is fine.
pub fn kill_group(leader: u32) {
    if let Some(pid) = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}
