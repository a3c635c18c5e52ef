//! Runs one round of a workload here and prints it as JSON: for trying a workload out, and its checks
//! under strace(1). `run WORKLOAD/SCENARIO DIR [NAME=VALUE ...] [--preset NAME]`

use std::error::Error;

use kdelta_wire::{Clock, FilesystemKind, ParameterValue, Parameters, RoundRequest, ScenarioJob};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(workload), Some(folder)) = (words.next(), words.next()) else {
        return Err("give WORKLOAD/SCENARIO and DIR".into());
    };
    let selection = kdelta_workloads::find(&workload)?;
    let info = selection.workload.info();
    let mut parameters = Parameters::new();
    let mut filesystem = FilesystemKind::Tmpfs;
    while let Some(word) = words.next() {
        if word == "--preset" {
            let preset = words.next().and_then(|name| info.preset(&name)).ok_or("no such preset")?;
            parameters.extend(preset.parameters(info, selection.scenario));
        } else if let Some(("fs", name)) = word.split_once('=') {
            filesystem = FilesystemKind::from_name(name).ok_or("no such filesystem")?;
        } else if let Some((name, value)) = word.split_once('=') {
            let value =
                value.parse().map_or_else(|_| ParameterValue::Text(value.into()), ParameterValue::Integer);
            parameters.insert(name.to_owned(), value);
        }
    }
    let request = RoundRequest {
        scenario: ScenarioJob {
            id: workload.clone(),
            workload,
            parameters,
            warmup: 0,
            rounds: 1,
            strace: Vec::new(),
        },
        round: 0,
        seed: 0,
        clock: Clock::Nanoseconds,
        cpu: None,
        filesystem,
        mount_point: folder,
        may_unmount: false,
    };
    println!("{}", serde_json::to_string_pretty(&kdelta_workloads::run(&request, None)?)?);
    Ok(())
}
