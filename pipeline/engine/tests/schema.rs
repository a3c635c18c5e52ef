//! The files of `configs/`: schemas are those of the types, and every example can be planned.
//! `KDELTA_UPDATE=1 cargo test -p kdelta-engine --test schema` writes the schemas anew.

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_engine::{builtin, config, run};
use kdelta_model::{Experiment, GuestShape};
use schemars::{JsonSchema, Schema, schema_for};

fn configs() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs")
}

fn files(folder: &str, ending: &str) -> Vec<Utf8PathBuf> {
    let entries = configs().join(folder).read_dir_utf8().expect("a folder");
    let mut files: Vec<Utf8PathBuf> = entries
        .map(|entry| entry.expect("an entry").path().to_owned())
        .filter(|path| path.extension() == Some(ending))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no .{ending} files in configs/{folder}");
    files
}

fn keep_current(name: &str, schema: &Schema) {
    let path = configs().join("schema").join(name);
    let text = serde_json::to_string_pretty(schema).expect("JSON") + "\n";
    if std::env::var_os("KDELTA_UPDATE").is_some() {
        fs::write(&path, &text).expect("write");
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "{path} is out of date; run with KDELTA_UPDATE=1 and commit it");
}

#[test]
fn the_schema_of_experiments_is_current() {
    keep_current("experiment.schema.json", &schema_for!(Experiment));
}

#[test]
fn the_schema_of_guests_is_current() {
    keep_current("guest.schema.json", &schema_for!(GuestShape));
}

/// An editor's completion is of no use without them.
#[test]
fn every_property_of_a_schema_is_described() {
    fn check<T: JsonSchema>() {
        let schema = serde_json::to_value(schema_for!(T)).expect("JSON");
        let types = schema["$defs"].as_object().into_iter().flatten().map(|(_, part)| part).chain([&schema]);
        for part in types {
            for (name, property) in part["properties"].as_object().into_iter().flatten() {
                assert!(property["description"].is_string(), "{name} of {}", part["title"]);
            }
        }
    }
    check::<Experiment>();
    check::<GuestShape>();
}

#[test]
fn every_example_can_be_planned() {
    for path in files("experiments", "yaml") {
        let text = fs::read_to_string(&path).expect("an experiment");
        let variables: Variables = serde_yaml::from_str(&text).expect("variables");
        let unset = variables.variables.iter().filter(|(_, variable)| variable.default.is_none());
        let values: BTreeMap<String, String> =
            unset.map(|(name, _)| (name.clone(), format!("dummy/{name}.patch"))).collect();
        let loaded = config::load(&path, &values).unwrap_or_else(|error| panic!("{path}: {error}"));
        let plan = run::dry_run(&loaded).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(plan.arms.len() > 1 && !plan.pairs.is_empty(), "{path}");
        assert_eq!(path.file_stem(), Some(loaded.experiment.name.as_str()), "{path}");
        assert!(!loaded.experiment.description.is_empty(), "{path}");
    }
}

#[derive(serde::Deserialize)]
struct Variables {
    #[serde(default)]
    variables: BTreeMap<String, kdelta_model::ExperimentVariable>,
}

#[test]
fn every_guest_and_fragment_is_built_in() {
    let names = |folder: &str, ending: &str| -> Vec<String> {
        files(folder, ending).iter().filter_map(|path| path.file_stem()).map(str::to_owned).collect()
    };
    let mut guests: Vec<&str> = builtin::GUESTS.iter().map(|(name, _)| *name).collect();
    guests.sort_unstable();
    assert_eq!(names("guests", "yaml"), guests);
    let mut fragments: Vec<&str> = builtin::FRAGMENTS.iter().map(|(name, _)| *name).collect();
    fragments.sort_unstable();
    assert_eq!(names("kernel", "config"), fragments);
}
