//! `kdelta`: what did this kernel change do to filesystem performance, and how sure is that?
//!
//! `main` parses, each command calls the engine, and [`exit::Exit`] says how it went.

mod args;
mod commands;
mod exit;
mod hints;
mod progress;
mod settings;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::exit::Exit;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            let wrong = error.use_stderr();
            return if wrong { Exit::Usage.into() } else { Exit::NoRegression.into() };
        }
    };
    let bisect = args.global.bisect_exit;
    match run(&args) {
        Ok(exit) if bisect => exit.for_bisect(),
        Ok(exit) => exit.into(),
        Err(error) => {
            let exit = hints::explain(&error);
            if bisect { exit.for_bisect() } else { exit.into() }
        }
    }
}

fn run(args: &Args) -> anyhow::Result<Exit> {
    match &args.command {
        Command::Run(command) => commands::run::run(&args.global, command),
        Command::Compare(command) => commands::compare::run(&args.global, command),
        Command::Report(command) => commands::report::run(command),
        Command::Workloads(command) => commands::workloads::run(command),
        Command::Doctor => commands::doctor::run(&args.global),
    }
}
