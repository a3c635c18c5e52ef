//! `kdelta compare`: an experiment without a file. What it means is an experiment like any other,
//! which `--write-experiment` shows.

use anyhow::{Context, bail};
use camino::Utf8PathBuf;
use kdelta_engine::{config, shell};
use kdelta_model::{
    ArmSettings, Experiment, FilesystemSettings, KernelSettings, KernelSource, MeasureChoice, PatchSource,
    WorkloadSettings,
};
use kdelta_wire::{FilesystemKind, ParameterValue, Parameters};

use crate::args::{Compare, Global};
use crate::commands::run;
use crate::exit::Exit;
use crate::terminal::say;

/// Compares, or writes the experiment.
pub fn run(global: &Global, args: &Compare) -> anyhow::Result<Exit> {
    let folder = Utf8PathBuf::try_from(std::env::current_dir()?)?;
    let experiment = experiment(args, folder.as_str())?;
    let yaml = yaml(&experiment)?;
    if let Some(path) = &args.write_experiment {
        std::fs::write(path, &yaml)
            .with_context(|| format!("cannot write {path}; give a file in a folder that exists"))?;
        say(format!("wrote {path}; run it with: kdelta run {}", shell::quote(path.as_str())))?;
        return Ok(Exit::NoRegression);
    }
    let loaded = config::parse("the command line", &yaml, folder, &Default::default())?;
    run::execute(global, &loaded, &args.running, &run::command_line())
}

/// The experiment as a file.
fn yaml(experiment: &Experiment) -> anyhow::Result<String> {
    kdelta_engine::config::to_yaml(experiment).context("the experiment cannot be written as YAML")
}

/// What the command line means, with every path made absolute.
fn experiment(args: &Compare, folder: &str) -> anyhow::Result<Experiment> {
    let kind = FilesystemKind::from_name(&args.fs).with_context(|| {
        let known: Vec<&str> = FilesystemKind::ALL.iter().map(|kind| kind.name()).collect();
        format!("--fs {}: no such filesystem; known: {}", args.fs, known.join(", "))
    })?;
    let measure = match args.measure.as_str() {
        "auto" => MeasureChoice::Auto,
        "instructions" => MeasureChoice::Instructions,
        "wall" => MeasureChoice::Wall,
        other => bail!("--measure {other}: it is auto, instructions or wall"),
    };
    let place = |source: &Option<KernelSource>| source.as_ref().map(|source| source.under(folder));
    let patches: Vec<PatchSource> = args.patches.iter().map(|patch| patch.under(folder)).collect();
    let side = |name: &str, source: Option<KernelSource>, patches: Vec<PatchSource>| ArmSettings {
        name: Some(name.to_owned()),
        kernel: KernelSettings { source, patches, ..KernelSettings::default() },
        ..ArmSettings::default()
    };
    let parameters: Parameters = args
        .parameters
        .iter()
        .map(|(name, value)| {
            let value =
                value.parse().map_or_else(|_| ParameterValue::Text(value.clone()), ParameterValue::Integer);
            (name.clone(), value)
        })
        .collect();
    let workloads = args.workloads.iter().map(|workload| WorkloadSettings::new(workload)).collect();
    Ok(Experiment {
        version: 1,
        name: "compare".to_owned(),
        description: String::new(),
        measure,
        boots: args.boots,
        repeats: None,
        deadline_seconds: None,
        seed: 0,
        margin_percent: args.margin,
        placebo: None,
        variables: Default::default(),
        kernel: KernelSettings {
            source: place(&args.kernel),
            options: args.options.clone(),
            ..KernelSettings::default()
        },
        guest: args.guest.clone(),
        settings: ArmSettings {
            filesystem: Some(FilesystemSettings {
                mkfs: args.mkfs.iter().flat_map(|text| text.split_whitespace().map(str::to_owned)).collect(),
                mount: mount_options(args.mount.as_deref().unwrap_or_default()),
                ..FilesystemSettings::new(kind)
            }),
            parameters,
            ..ArmSettings::default()
        },
        workloads,
        arms: vec![
            side("parent", place(&args.parent), Vec::new()),
            side("child", place(&args.child), patches),
        ],
        factors: Vec::new(),
    })
}

/// `a,b` as a list; nothing between two commas is no option.
fn mount_options(text: &str) -> Vec<String> {
    text.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_are_what_stands_between_commas() {
        assert_eq!(mount_options("noatime,size=1g"), ["noatime", "size=1g"]);
        assert_eq!(mount_options(",noatime,,"), ["noatime"]);
        assert!(mount_options("").is_empty());
    }
}
