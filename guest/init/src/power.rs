//! How a guest ends. Read [`off`] first.

use std::path::Path;
use std::process::ExitCode;

use rustix::system::RebootCommand;

use crate::console::Console;

/// Ends the guest, and so QEMU; returns only when the kernel refuses, and then PID 1 ends, which
/// is a panic that `panic=-1` turns into a reboot.
///
/// Nothing is synced: results have left by the port, and after an oops a sync may wait forever.
pub(crate) fn off() -> ExitCode {
    // Without ACPI a kernel halts instead of powering off and QEMU spins; a reboot under
    // `-no-reboot` ends it in both cases.
    let command = if Path::new("/sys/firmware/acpi").exists() {
        RebootCommand::PowerOff
    } else {
        RebootCommand::Restart
    };
    let _ = rustix::system::reboot(command);
    ExitCode::FAILURE
}

/// Makes a panic of PID 1 visible on the console and an end of the guest.
pub(crate) fn off_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let mut console = Console::open().unwrap_or_else(|_| Console::inherited());
        console.say(&format!("kdelta: init panicked: {panic}"));
        off();
    }));
}
