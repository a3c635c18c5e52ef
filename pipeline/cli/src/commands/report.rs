//! `kdelta report`: renders a finished run again.

use anyhow::Context;
use kdelta_engine::{journal, run};

use crate::args::Report;
use crate::exit::Exit;
use crate::terminal::say;

/// Prints the report, or the record itself.
pub fn run(args: &Report) -> anyhow::Result<Exit> {
    let mut record = journal::read_finished(&args.run)?;
    if args.judge_again {
        run::judge(&mut record).context("the observations cannot be judged")?;
    }
    if args.as_json {
        say(serde_json::to_string_pretty(&record)?)?;
    } else {
        say((kdelta_report::text(&record)?).trim_end())?;
    }
    Ok(Exit::of(&record))
}
