//! `kdelta`: what did this kernel change do to filesystem performance, and how sure is that?
//!
//! `main` parses, each command calls the engine, and [`exit::Exit`] says how it went.

mod args;
mod commands;
mod exit;
mod hints;
mod progress;
mod settings;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::exit::Exit;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::NoRegression };
            // The line could not be read, but `git bisect run` must not take it for a bad commit.
            let bisect = std::env::args_os().any(|word| word == "--bisect-exit");
            return if bisect { exit.for_bisect() } else { exit.into() };
        }
    };
    let bisect = args.global.bisect_exit;
    // A panic is a fault of kdelta, never evidence about a commit.
    let exit = match std::panic::catch_unwind(|| run(&args)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => hints::explain(&error),
        Err(_) => Exit::Host,
    };
    if bisect { exit.for_bisect() } else { exit.into() }
}

fn run(args: &Args) -> anyhow::Result<Exit> {
    match &args.command {
        Command::Run(command) => commands::run::run(&args.global, command),
        Command::Compare(command) => commands::compare::run(&args.global, command),
        Command::Report(command) => commands::report::run(command),
        Command::Workloads(command) => commands::workloads::run(&args.global, command),
        Command::Doctor => commands::doctor::run(&args.global),
    }
}
