//! Transcripts: what each command prints and how it exits. `TRYCMD=overwrite cargo test -p kdelta`
//! writes them anew; read the difference aloud before committing it.

#[test]
fn every_command_prints_what_its_transcript_says() {
    // The width of help texts is that of the terminal otherwise.
    trycmd::TestCases::new().env("COLUMNS", "90").case("tests/cmd/*.trycmd");
}
