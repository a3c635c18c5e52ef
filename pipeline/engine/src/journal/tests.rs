//! Run folders that were torn, damaged, or are in use.

use kdelta_model::MeasureMode::Instructions;

use super::*;
use crate::testing::{self, TWO_ARMS};

struct Bench {
    _dir: tempfile::TempDir,
    path: Utf8PathBuf,
    session: RunRecord,
    boots: Vec<BootRecord>,
}

impl Bench {
    /// A run of three boots that ended without a record.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = Utf8PathBuf::try_from(dir.path().join("run")).expect("UTF-8");
        let session = testing::record(TWO_ARMS, Instructions);
        let boots: Vec<BootRecord> =
            testing::boots(&session.plan, |_, boot, _| 800.125 + 1.0 / (boot.index as f64 + 3.0))
                .into_iter()
                .take(3)
                .collect();
        let folder = RunFolder::create(&path, &session).expect("a run folder");
        for boot in &boots {
            folder.append(boot).expect("a line");
        }
        Self { _dir: dir, path, session, boots }
    }

    fn journal(&self) -> Vec<u8> {
        fs::read(self.path.join(JOURNAL)).expect("a journal")
    }

    fn write_journal(&self, bytes: &[u8]) {
        fs::write(self.path.join(JOURNAL), bytes).expect("a journal");
    }

    fn error(&self) -> String {
        RunFolder::reopen(&self.path).expect_err("no run").to_string()
    }
}

#[test]
fn what_was_written_is_read_back_bit_for_bit() {
    let bench = Bench::new();
    let (folder, session, boots) = RunFolder::reopen(&bench.path).expect("a run");
    assert_eq!((session, boots), (bench.session.clone(), bench.boots.clone()));
    assert_eq!(folder.path(), bench.path);
    let record = RunRecord { boots: bench.boots.clone(), ..bench.session.clone() };
    let file = folder.finish(&record).expect("a record");
    assert_eq!(read_finished(&bench.path).expect("from the folder"), record);
    assert_eq!(read_finished(&file).expect("from the file"), record);
}

#[test]
fn a_last_line_torn_anywhere_is_cut_off_and_the_rest_kept() {
    let bench = Bench::new();
    let whole = bench.journal();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').expect("a line") + 1;
    for end in [last + 1, last + 40, whole.len() - 2, whole.len() - 1] {
        bench.write_journal(&whole[..end]);
        let (folder, _, boots) = RunFolder::reopen(&bench.path).expect("a run");
        assert_eq!(boots, bench.boots[..2], "cut at {end} of {}", whole.len());
        folder.append(&bench.boots[2]).expect("a line");
        drop(folder);
        assert_eq!(bench.journal(), whole, "cut at {end}");
    }
    bench.write_journal(b"{");
    assert!(RunFolder::reopen(&bench.path).expect("a run").2.is_empty());
}

#[test]
fn a_second_kdelta_is_sent_away_until_the_first_is_done() {
    let bench = Bench::new();
    let (folder, ..) = RunFolder::reopen(&bench.path).expect("a run");
    let error = RunFolder::reopen(&bench.path).expect_err("busy");
    assert!(matches!(error, JournalError::Busy(_)), "{error:?}");
    assert_eq!(error.to_string(), format!("another kdelta works on {}; wait for it to end", bench.path));
    drop(folder);
    assert!(RunFolder::reopen(&bench.path).is_ok());
}

#[test]
fn a_run_is_free_when_it_is_done_even_if_a_child_still_shares_the_lock_s_file() {
    let bench = Bench::new();
    let (folder, ..) = RunFolder::reopen(&bench.path).expect("a run");
    let _shared = folder.lock.file().try_clone().expect("what a fork does");
    drop(folder);
    assert!(RunFolder::reopen(&bench.path).is_ok());
}

#[test]
fn a_damaged_line_in_the_middle_is_named() {
    let bench = Bench::new();
    let text = String::from_utf8(bench.journal()).expect("UTF-8");
    let damaged = text.replacen("\"index\":1", "\"index\":x", 1);
    assert_ne!(damaged, text);
    bench.write_journal(damaged.as_bytes());
    let error = bench.error();
    assert!(error.contains("journal.jsonl") && error.contains("line 2: "), "{error}");
    bench.write_journal(format!("\n{damaged}").as_bytes());
    let error = bench.error();
    assert!(error.contains("line 3: "), "blank lines count: {error}");
}

#[test]
fn another_version_is_told_apart_from_damage() {
    let bench = Bench::new();
    let session = bench.path.join(SESSION);
    let ours = format!("\"version\": {RECORD_VERSION}");
    let text = fs::read_to_string(&session).expect("a session");
    fs::write(&session, text.replacen(&ours, "\"version\": 99", 1)).expect("write");
    let error = bench.error();
    assert!(error.contains(&format!("record version 99, this kdelta reads {RECORD_VERSION}")), "{error}");
    // A newer record may have anything in it: the version is read first.
    fs::write(&session, "{\"version\": 99}").expect("write");
    assert!(bench.error().contains("record version 99"), "{}", bench.error());
    for damage in ["", "{", "[]", &format!("{{{ours}}}"), "{\"version\": \"1\"}"] {
        fs::write(&session, damage).expect("write");
        let error = bench.error();
        assert!(error.contains("session.json cannot be understood"), "{error}");
    }
}

#[test]
fn a_folder_is_never_used_for_two_runs_and_needs_a_run_to_go_on_with() {
    let bench = Bench::new();
    let error = RunFolder::create(&bench.path, &bench.session).expect_err("exists").to_string();
    assert!(error.contains("exists already") && error.contains("--resume"), "{error}");
    let empty = bench.path.join("boots");
    let error = RunFolder::reopen(&empty).expect_err("no run").to_string();
    assert!(error.contains("holds no run (no session.json)"), "{error}");
    let error = read_finished(&empty).expect_err("no run").to_string();
    assert!(error.contains("holds no run (no session.json)"), "{error}");
    let error = read_finished(&bench.path).expect_err("no record").to_string();
    assert!(error.contains("is not finished; go on with: kdelta run --resume"), "{error}");
    let nothing = bench.path.join("nothing");
    let expected = format!(
        "there is no run \"{nothing}\"; give the folder that `kdelta run` printed (kdelta-runs/NAME-TIME, or that of \
         --out)"
    );
    assert_eq!(read_finished(&nothing).expect_err("no file").to_string(), expected);
    assert_eq!(RunFolder::reopen(&nothing).expect_err("no folder").to_string(), expected);
}

#[test]
fn a_hint_to_resume_can_be_typed_as_it_is() {
    let path = Utf8PathBuf::from("it's mine/$run");
    let resume = r"kdelta run --resume 'it'\''s mine/$run'";
    assert_eq!(
        JournalError::Exists(path.clone()).to_string(),
        format!("it's mine/$run exists already; go on with `{resume}`, or choose another folder with --out")
    );
    assert_eq!(
        JournalError::Unfinished(path).to_string(),
        format!("the run it's mine/$run is not finished; go on with: {resume}")
    );
}

/// Whether `edit` of a stored session is refused, and how.
fn refused(edit: impl FnOnce(&mut RunRecord)) -> String {
    let bench = Bench::new();
    let mut session = bench.session.clone();
    edit(&mut session);
    write_json(&bench.path.join(SESSION), &session).expect("a session");
    bench.error()
}

#[test]
fn a_plan_that_was_edited_after_it_was_fixed_is_refused() {
    let message = refused(|session| session.plan.margin_percent = 50.0);
    assert!(message.contains("not the one whose digest was stored"), "{message}");
}

#[test]
fn a_record_that_does_not_hang_together_is_refused_and_never_panics() {
    /// Makes the digest fit, so that the rest is looked at.
    fn digested(session: &mut RunRecord) {
        session.plan_digest = crate::kernel::digest_of(&session.plan.canonical().expect("JSON"));
    }
    let cases: [fn(&mut RunRecord); 6] = [
        |session| session.plan.arms[1].kernel = 9,
        |session| session.plan.pairs[0].arm = 99,
        |session| session.plan.boots[0].arm = 9,
        |session| session.plan.arms[0].scenarios[0].workload = "nope/nope".into(),
        |session| session.kernels.clear(),
        |session| session.arms.clear(),
    ];
    for edit in cases {
        let message = refused(|session| {
            edit(session);
            digested(session);
        });
        assert!(message.contains("cannot be understood"), "{message}");
    }
}

#[test]
fn a_boot_that_the_plan_does_not_ask_for_is_refused_and_the_last_of_two_lines_counts() {
    let bench = Bench::new();
    let (folder, _, _) = RunFolder::reopen(&bench.path).expect("a run");
    let again = BootRecord { load_before: 7.0, ..bench.boots[1].clone() };
    folder.append(&again).expect("a line");
    drop(folder);
    let (folder, _, boots) = RunFolder::reopen(&bench.path).expect("a run");
    assert_eq!(boots, [bench.boots[0].clone(), again, bench.boots[2].clone()]);
    folder.append(&BootRecord { index: 77, ..bench.boots[0].clone() }).expect("a line");
    drop(folder);
    assert!(bench.error().contains("boot 77 is not one that the plan asks for"));
}

#[test]
fn a_new_run_takes_only_an_empty_folder() {
    let bench = Bench::new();
    let message = |path: &Utf8Path| RunFolder::check_new(path).expect_err("taken").to_string();
    assert!(message(&bench.path).contains("--resume"));
    fs::remove_file(bench.path.join(SESSION)).expect("removed");
    assert!(message(&bench.path).contains("is not empty"));
    let file = bench.path.join(JOURNAL);
    assert!(message(&file).contains("make the run folder"));
}
