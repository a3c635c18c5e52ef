//! Reads and applies patches with the real git on small trees.

use std::fs;
use std::os::unix::fs::symlink;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::kernel::PatchSource;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::event::Silent;
use crate::process::Program;
use crate::{Cache, Cancel, Context};

/// A folder with a tree, and what the functions under test need.
struct Bench {
    _home: TempDir,
    root: Utf8PathBuf,
    cache: Cache,
    cancel: Cancel,
}

const FILE: &str = "fs/xfs/parent.c";
const ORIGINAL: &str = "\
#include <xfs.h>

int parent_add(struct inode *dp)
{
\tint error;

\terror = attr_add(dp);
\tif (error)
\t\treturn error;
\treturn 0;
}

int parent_remove(struct inode *dp)
{
\treturn attr_remove(dp);
}
";
const CHANGE: &str = "\
--- a/fs/xfs/parent.c
+++ b/fs/xfs/parent.c
@@ -4,7 +4,7 @@ int parent_add(struct inode *dp)
 {
 \tint error;
 
-\terror = attr_add(dp);
+\terror = attr_add_short(dp);
 \tif (error)
 \t\treturn error;
 \treturn 0;
";
const SECOND: &str = "\
--- a/fs/xfs/parent.c
+++ b/fs/xfs/parent.c
@@ -12,5 +12,5 @@ int parent_add(struct inode *dp)
 
 int parent_remove(struct inode *dp)
 {
-\treturn attr_remove(dp);
+\treturn attr_remove_short(dp);
 }
";

impl Bench {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let root = Utf8Path::from_path(home.path()).expect("UTF-8").to_owned();
        let cache = Cache::open(&root.join("cache")).expect("a cache");
        let bench = Self { _home: home, root, cache, cancel: Cancel::default() };
        bench.write(&format!("work/tree/{FILE}"), ORIGINAL);
        bench.write("work/tree/Makefile", "obj-y += fs/\n");
        bench
    }

    fn write(&self, path: &str, text: &str) -> Utf8PathBuf {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(&path, text).expect("a file");
        path
    }

    fn ctx(&self) -> Context<'_> {
        Context { cache: &self.cache, events: &Silent, cancel: &self.cancel, jobs: 1 }
    }

    fn work(&self) -> Utf8PathBuf {
        self.root.join("work")
    }

    fn read(&self, path: &str) -> Result<Vec<Patch>, PatchError> {
        read(&self.ctx(), &[PatchSource::Path(self.root.join(path).into_string())])
    }

    fn apply(&self, texts: &[&str]) -> Result<(), PatchError> {
        let patch = |text: &&str| Patch {
            subject: "xfs: add short".into(),
            origin: "short.patch".into(),
            text: (*text).into(),
        };
        apply(&self.ctx(), &self.work(), &texts.iter().map(patch).collect::<Vec<_>>())
    }

    fn content(&self) -> String {
        fs::read_to_string(self.work().join("tree").join(FILE)).unwrap_or_default()
    }

    /// Every path of the tree with its kind and content.
    fn snapshot(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let mut folders = vec![self.work().join("tree")];
        while let Some(folder) = folders.pop() {
            for entry in folder.read_dir_utf8().expect("a folder").map(|entry| entry.expect("an entry")) {
                let path = entry.path().to_owned();
                let content = if path.is_symlink() {
                    format!("-> {}", path.read_link_utf8().expect("a link"))
                } else if path.is_dir() {
                    folders.push(path.clone());
                    "folder".to_owned()
                } else {
                    use std::os::unix::fs::PermissionsExt;
                    let mode = path.metadata().expect("metadata").permissions().mode();
                    format!("{mode:o} {}", fs::read_to_string(&path).expect("text"))
                };
                all.push((path.into_string(), content));
            }
        }
        all.sort();
        all
    }

    fn is_pristine(&self, before: &[(String, String)]) {
        assert_eq!(self.snapshot(), before);
        assert!(!self.work().join("applied").exists() && !self.work().join("applied.done").exists());
    }
}

fn subjects(patches: &[Patch]) -> Vec<&str> {
    patches.iter().map(|patch| patch.subject.as_str()).collect()
}

fn mail(subject: &str, body: &str) -> String {
    format!(
        "From mboxrd@z Thu Jan  1 00:00:00 1970\nFrom: A <a@example.org>\nSubject: {subject}\nDate: Thu, 1 Jan 2026 \
         00:00:00 +0000\nMessage-ID: <{}@example.org>\n\n{body}\n",
        subject.len()
    )
}

#[test]
fn the_digest_depends_on_the_texts_and_their_borders() {
    let patch = |text: &str| Patch { subject: "s".into(), origin: "o".into(), text: text.into() };
    assert_eq!(digest(&[]), None);
    let one = digest(&[patch("ab"), patch("c")]);
    assert_eq!(one, digest(&[Patch { subject: "other".into(), ..patch("ab") }, patch("c")]));
    assert_ne!(one, digest(&[patch("a"), patch("bc")]));
}

#[test]
fn a_plain_diff_applies_and_is_taken_back() {
    let bench = Bench::new();
    let before = bench.snapshot();
    bench.write("p/short.diff", CHANGE);
    let patches = bench.read("p/short.diff").expect("a patch");
    assert_eq!(subjects(&patches), ["short.diff"]);
    apply(&bench.ctx(), &bench.work(), &patches).expect("applies");
    assert!(bench.content().contains("attr_add_short"));
    apply(&bench.ctx(), &bench.work(), &patches).expect("applies again, from the start");
    restore(&bench.work()).expect("restores");
    bench.is_pristine(&before);
    restore(&bench.work()).expect("restores nothing");
}

#[test]
fn a_restored_file_has_a_new_time_stamp() {
    let bench = Bench::new();
    let path = bench.work().join("tree").join(FILE);
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_modified(old))
        .expect("a time stamp");
    bench.apply(&[CHANGE]).expect("applies");
    restore(&bench.work()).expect("restores");
    assert_ne!(path.metadata().and_then(|meta| meta.modified()).expect("a time stamp"), old);
}

#[test]
fn diff_urp_with_time_stamps_applies() {
    let bench = Bench::new();
    let text = CHANGE
        .replace("--- a/", "diff -urp linux-6.12/fs/xfs/parent.c linux/fs/xfs/parent.c\n--- linux-6.12/")
        .replace("+++ b/fs/xfs/parent.c", "+++ linux/fs/xfs/parent.c\t2026-01-01 10:00:00.000000000 +0100");
    bench.write("urp.patch", &text);
    apply(&bench.ctx(), &bench.work(), &bench.read("urp.patch").expect("a patch")).expect("applies");
    assert!(bench.content().contains("attr_add_short"));
}

#[test]
fn a_mail_in_quoted_printable_with_carriage_returns_applies() {
    let bench = Bench::new();
    let body = format!("Größer.\n---\n f | 2 +-\n\n{CHANGE}-- \n2.47.3\n")
        .replace('=', "=3D")
        .replace('\t', "=09")
        .replace("attr_add_short", "attr_add=\n_short")
        .replace('ö', "=C3=B6")
        .replace('ß', "=C3=9F")
        .replace(" \n", "=20\n");
    let text = format!(
        "From: =?utf-8?Q?J=C3=B6rg?= <j@example.org>\nSubject: [PATCH v2] xfs: =?utf-8?Q?gr=C3=B6=C3=9Fer?=\n \
         and folded\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
         Content-Transfer-Encoding: quoted-printable\n\n{body}"
    );
    bench.write("m.eml", &text.replace('\n', "\r\n"));
    let patches = bench.read("m.eml").expect("a mail");
    assert_eq!(subjects(&patches), ["xfs: größer and folded"]);
    apply(&bench.ctx(), &bench.work(), &patches).expect("applies");
    assert!(bench.content().contains("attr_add_short") && !bench.content().contains('\r'));
}

#[test]
fn an_attachment_in_base64_is_read_when_the_text_has_no_diff() {
    let bench = Bench::new();
    let encoded: String =
        base64(CHANGE.as_bytes()).as_bytes().chunks(76).map(|c| String::from_utf8_lossy(c) + "\n").collect();
    bench.write(
        "m.eml",
        &format!(
            "From: a@example.org\nSubject: see attachment\nMIME-Version: 1.0\nContent-Type: multipart/mixed; \
             boundary=\"b\"\n\n--b\nContent-Type: text/plain\n\nHere it is.\n--b\nContent-Type: text/x-patch; \
             name=\"x.patch\"\nContent-Disposition: attachment; filename=\"x.patch\"\nContent-Transfer-Encoding: \
             base64\n\n{encoded}\n--b--\n"
        ),
    );
    let patches = bench.read("m.eml").expect("a mail");
    apply(&bench.ctx(), &bench.work(), &patches).expect("applies");
    assert!(bench.content().contains("attr_add_short"));
}

/// The encoding of RFC 4648.
fn base64(bytes: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, byte| (word << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = usize::try_from((word >> (18 - 6 * digit)) & 63).expect("6 bits");
            text.push(if digit <= chunk.len() { char::from(alphabet[index]) } else { '=' });
        }
    }
    text
}

#[test]
fn a_mailbox_in_the_wrong_order_is_sorted_and_stripped_of_cover_letter_and_replies() {
    let bench = Bench::new();
    let quoted: String = SECOND.lines().map(|line| format!("> {line}\n")).collect();
    let mbox = [
        mail("Re: [PATCH 2/2] xfs: remove short", &format!("{quoted}\nFrom here on it is fine.\n\n{CHANGE}")),
        mail("[PATCH 2/2] xfs: remove short", SECOND),
        mail("[PATCHSET 0/2] xfs: short", &format!("Both.\n\n{CHANGE}")),
        mail("[PATCH 1/2] xfs: add short", CHANGE),
        mail("[PATCH 1/2] xfs: add short", CHANGE),
    ]
    .concat();
    bench.write("s.mbox", &mbox);
    let patches = bench.read("s.mbox").expect("a series");
    assert_eq!(subjects(&patches), ["xfs: add short", "xfs: remove short"]);
    assert!(patches[1].origin.ends_with("s.mbox, 2/2"), "{}", patches[1].origin);
    apply(&bench.ctx(), &bench.work(), &patches).expect("applies");
}

#[test]
fn a_mailbox_without_one_of_its_parts_is_refused() {
    let bench = Bench::new();
    bench.write("s.mbox", &(mail("[PATCH 1/3] one", CHANGE) + &mail("[PATCH 3/3] three", SECOND)));
    let error = bench.read("s.mbox").expect_err("incomplete").to_string();
    assert!(error.contains("has 2 of the 3 patches of a series; missing: 2."), "{error}");
}

#[test]
fn the_newest_version_in_a_mailbox_wins() {
    let bench = Bench::new();
    bench.write("s.mbox", &(mail("[PATCH] xfs: one", SECOND) + &mail("[PATCH v2] xfs: one", CHANGE)));
    assert_eq!(
        bench.read("s.mbox").expect("a patch")[0].text,
        diff::render(&diff::parse(CHANGE, 1).expect("a diff"))
    );
}

#[test]
fn a_single_mail_is_taken_as_it_is_even_a_reply() {
    let bench = Bench::new();
    bench.write("r.eml", &mail("Re: [PATCH v3 2/9] xfs: one", &format!("Try this:\n\n{CHANGE}")));
    let patches = bench.read("r.eml").expect("a patch");
    assert_eq!(subjects(&patches), ["xfs: one"]);
    assert!(patches[0].origin.ends_with("r.eml"));
}

#[test]
fn a_folder_follows_its_series_file_and_else_the_names() {
    let bench = Bench::new();
    bench.write("q/a.patch", SECOND);
    bench.write("q/b.diff", &CHANGE.replace("a/fs", "fs").replace("b/fs", "fs"));
    bench.write("q/notes.txt", "not a patch");
    bench.write("q/series", "# first\n\nb.diff -p0 # no prefix\na.patch\n");
    let patches = bench.read("q").expect("a series");
    assert_eq!(subjects(&patches), ["b.diff", "a.patch"]);
    apply(&bench.ctx(), &bench.work(), &patches).expect("applies");
    fs::remove_file(bench.root.join("q/series")).expect("removed");
    bench.write("q/b.diff", CHANGE);
    assert_eq!(subjects(&bench.read("q").expect("two patches")), ["a.patch", "b.diff"]);
}

#[test]
fn input_without_a_patch_says_what_it_is() {
    let bench = Bench::new();
    let check = |text: &[u8], says: &str| {
        fs::write(bench.root.join("x"), text).expect("a file");
        let error = bench.read("x").expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("/x"), "{error}");
    };
    check(b"", "it is empty");
    check(b"\x1f\x8b\x08", "gunzip");
    check(b"\0\x01", "binary data");
    check(b"<!DOCTYPE html>\n<html>", "a web page");
    check(b"hello\n", "1 lines of text, none of which start a diff");
    check(mail("[PATCH] x", "no diff here").as_bytes(), "one mail without a diff");
    check(b"--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-a\n", "still lacks 1 old and 1 new lines");
    check(b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+\xe4\n", "not UTF-8");
    check(b"--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n", "no leading folder");
    let error = bench.read("missing").expect_err("missing").to_string();
    assert!(error.contains("missing: No such file"), "{error}");
    let error = bench.read("cache").expect_err("no patches").to_string();
    assert!(error.contains("a folder without files named *.patch"), "{error}");
}

fn run_git(folder: &Utf8Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
    let output = Program::new("git")
        .env_remove("GIT_DIR")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .dir(folder)
        .args(identity)
        .args(arguments.iter().copied())
        .output(&Cancel::default());
    output.expect("git works").text()
}

#[test]
fn a_range_of_commits_is_read_oldest_first_whatever_the_configuration() {
    let bench = Bench::new();
    let repository = bench.root.join("repository");
    fs::create_dir(&repository).expect("a folder");
    run_git(&repository, &["init", "-q"]);
    run_git(&repository, &["config", "diff.noprefix", "true"]);
    run_git(&repository, &["config", "format.subjectPrefix", "RFC 7/9"]);
    run_git(&repository, &["config", "diff.context", "0"]);
    run_git(&repository, &["config", "format.attach", "true"]);
    for (text, message) in [("a\n", "base"), ("b\n", "first: a to b"), ("c\n", "second: b to c")] {
        bench.write("repository/d/f", text);
        run_git(&repository, &["add", "."]);
        run_git(&repository, &["commit", "-qm", message]);
    }
    let range = |range: &str| {
        read(
            &bench.ctx(),
            &[PatchSource::GitRange { repository: repository.to_string(), range: range.into() }],
        )
    };
    let patches = range("HEAD~2..HEAD").expect("two commits");
    assert_eq!(subjects(&patches), ["first: a to b", "second: b to c"]);
    assert_eq!(
        patches[0].origin,
        format!("commit {}", &run_git(&repository, &["rev-parse", "HEAD~1"])[..12])
    );
    bench.write("work/tree/d/f", "a\n");
    apply(&bench.ctx(), &bench.work(), &patches).expect("applies");
    assert!(range("HEAD..HEAD").expect_err("empty").to_string().contains("has no commits"));
    assert!(range("HEAD..nowhere").expect_err("unknown").to_string().contains("nowhere"));
    let remote =
        PatchSource::GitRange { repository: "https://example.org/l.git".into(), range: "a..b".into() };
    assert!(read(&bench.ctx(), &[remote]).expect_err("remote").to_string().contains("clone it first"));
}

const SHAPES: &str = "\
diff --git a/new/deep/n.c b/new/deep/n.c
new file mode 100755
index 0000000..1
--- /dev/null
+++ b/new/deep/n.c
@@ -0,0 +1 @@
+int n;
diff --git a/Makefile b/Makefile
deleted file mode 100644
--- a/Makefile
+++ /dev/null
@@ -1 +0,0 @@
-obj-y += fs/
diff --git a/fs/xfs/parent.c b/fs/ext4/parent file.c
similarity index 100%
rename from fs/xfs/parent.c
rename to fs/ext4/parent file.c
diff --git a/link b/link
deleted file mode 120000
--- a/link
+++ /dev/null
@@ -1 +0,0 @@
-Makefile
\\ No newline at end of file
diff --git a/link/inside b/link/inside
new file mode 100644
--- /dev/null
+++ b/link/inside
@@ -0,0 +1 @@
+x
";

#[test]
fn new_deleted_and_renamed_files_come_and_go() {
    let bench = Bench::new();
    let tree = bench.work().join("tree");
    bench.write("work/tree/keep/f", "f\n");
    symlink("keep", tree.join("link")).expect("a link");
    let before = bench.snapshot();
    // A path below a link is refused even if the link goes away first: git refuses it too.
    let error = bench.apply(&[SHAPES]).expect_err("through a link").to_string();
    assert!(error.contains("passes through the symbolic link link"), "{error}");
    let shapes = SHAPES.split_once("diff --git a/link b/link").expect("the rest").0;
    bench.apply(&[shapes]).expect("applies");
    assert!(!tree.join("fs/xfs").exists() && !tree.join("Makefile").exists());
    assert_eq!(fs::read_to_string(tree.join("fs/ext4/parent file.c")).expect("renamed"), ORIGINAL);
    restore(&bench.work()).expect("restores");
    bench.is_pristine(&before);
}

#[test]
fn a_file_may_become_a_folder_and_a_folder_a_file() {
    let bench = Bench::new();
    bench.write("work/tree/d/only", "x\n");
    let before = bench.snapshot();
    let text = "\
diff --git a/Makefile b/Makefile
deleted file mode 100644
--- a/Makefile
+++ /dev/null
@@ -1 +0,0 @@
-obj-y += fs/
diff --git a/Makefile/in b/Makefile/in
new file mode 100644
--- /dev/null
+++ b/Makefile/in
@@ -0,0 +1 @@
+x
";
    bench.apply(&[text]).expect("applies");
    restore(&bench.work()).expect("restores");
    bench.is_pristine(&before);
    let text = "\
diff --git a/d/only b/d/only
deleted file mode 100644
--- a/d/only
+++ /dev/null
@@ -1 +0,0 @@
-x
";
    let file = "diff --git a/d b/d\nnew file mode 120000\n--- /dev/null\n+++ b/d\n@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n";
    bench.apply(&[text, file]).expect("applies");
    assert!(bench.work().join("tree/d").is_symlink());
    restore(&bench.work()).expect("restores");
    bench.is_pristine(&before);
}

#[test]
fn a_patch_applies_inside_of_a_repository_and_leaves_its_index_alone() {
    let bench = Bench::new();
    run_git(&bench.root, &["init", "-q"]);
    bench.apply(&[CHANGE]).expect("applies below the top of a repository");
    assert!(bench.content().contains("attr_add_short"));
    restore(&bench.work()).expect("restores");
    run_git(&bench.root, &["add", "work"]);
    run_git(&bench.root, &["commit", "-qm", "base"]);
    // Now the tree is a worktree with a .git file.
    let other = bench.root.join("other");
    fs::create_dir(&other).expect("a folder");
    run_git(&bench.root, &["worktree", "add", "-q", "other/tree"]);
    let text = CHANGE.replace("fs/xfs", "work/tree/fs/xfs");
    let patch = Patch { subject: "s".into(), origin: "o".into(), text };
    apply(&bench.ctx(), &other, &[patch]).expect("applies in a worktree");
    let status = run_git(&other.join("tree"), &["status", "--porcelain"]);
    assert_eq!(status, " M work/tree/fs/xfs/parent.c", "changed in the work tree, not staged");
    assert_eq!(run_git(&other.join("tree"), &["diff", "--cached"]), "");
    restore(&other).expect("restores");
    assert_eq!(run_git(&other.join("tree"), &["status", "--porcelain"]), "");
}

#[test]
fn hostile_paths_are_refused_before_anything_changes() {
    let bench = Bench::new();
    symlink("/tmp", bench.work().join("tree/out")).expect("a link");
    let before = bench.snapshot();
    let check = |path: &str, why: &str| {
        let create = |path: &str| format!("--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+x\n");
        let error = bench.apply(&[CHANGE, &create(path)]).expect_err(path);
        assert!(matches!(error, PatchError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        bench.is_pristine(&before);
    };
    check("/etc/passwd", "is absolute");
    check("b//etc/passwd", "is absolute");
    check("b/../../x", "leaves the tree");
    check("b/fs/../../../x", "leaves the tree");
    check("b/fs//x", "empty component");
    check("b/.git/hooks/pre-commit", "git's own folder");
    check("b/out/x", "passes through the symbolic link out");
    let rename = "diff --git a/f b/f\nrename from ../f\nrename to f\n";
    assert!(matches!(bench.apply(&[rename]), Err(PatchError::Refused { .. })));
    // A link that the series itself makes is followed neither on the way in nor on the way back.
    let target = bench.root.join("outside");
    fs::create_dir(&target).expect("a folder");
    fs::write(target.join("x"), "mine").expect("a file");
    let link = format!(
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+{target}\n\\ No newline at end of file\n"
    );
    bench.apply(&[&link, "--- /dev/null\n+++ b/l/x\n@@ -0,0 +1 @@\n+x\n"]).expect_err("through its own link");
    bench.is_pristine(&before);
    assert_eq!(fs::read_to_string(target.join("x")).expect("still there"), "mine");
}

#[test]
fn a_patch_that_does_not_apply_shows_the_hunk_beside_the_file() {
    let bench = Bench::new();
    let other = ORIGINAL
        .replace("attr_add(dp)", "attr_add(dp, 0)")
        .replace("\treturn 0;", "\ttrace(dp);\n\treturn 0;");
    bench.write(&format!("work/tree/{FILE}"), &format!("/* one\n * line\n * more */\n{other}"));
    let before = bench.snapshot();
    let new = "--- /dev/null\n+++ b/Makefile\n@@ -0,0 +1 @@\n+x\n";
    let missing = "--- a/fs/gone.c\n+++ b/fs/gone.c\n@@ -1 +1 @@\n-x\n+y\n";
    let error = bench.apply(&[SECOND, &[CHANGE, new, missing].concat()]).expect_err("does not apply");
    bench.is_pristine(&before);
    insta::assert_snapshot!(error, @r"
    the patch short.patch (xfs: add short) does not apply:
    fs/xfs/parent.c, hunk 1 of 1: @@ -4,7 +4,7 @@ int parent_add(struct inode *dp)
    the most similar place of the file begins at line 7; `!` marks what differs:
        expected by the patch     | found in the tree
        {                         | {
            int error;            |     int error;
                                  |
      !     error = attr_add(dp); |     error = attr_add(dp, 0);
            if (error)            |     if (error)
                return error;     |         return error;
      !                           |     trace(dp);
            return 0;             |     return 0;

    Makefile: the patch creates this file, but the tree has it already.

    fs/gone.c: this tree has no such file. It has another name here, or an earlier patch adds it.

    Choose the kernel that the patch was made for, add the patches that it builds on before it, or port it to this kernel.
    ");
}

#[test]
fn a_file_with_nothing_alike_shows_only_what_is_expected() {
    let bench = Bench::new();
    bench.write(&format!("work/tree/{FILE}"), "something else\n}\n");
    let error = bench.apply(&[CHANGE]).expect_err("does not apply").to_string();
    assert!(error.contains("nothing in the file is like what the hunk expects"), "{error}");
}

#[test]
fn a_patch_whose_tabs_became_spaces_is_told_so() {
    let bench = Bench::new();
    let error = bench.apply(&[&CHANGE.replace('\t', "        ")]).expect_err("does not apply").to_string();
    assert!(error.contains("applies when white space is ignored") && error.contains("`~` marks"), "{error}");
}

#[test]
fn a_patch_that_the_tree_has_already_is_told_so() {
    let bench = Bench::new();
    bench.write(&format!("work/tree/{FILE}"), &ORIGINAL.replace("attr_add(", "attr_add_short("));
    let error = bench.apply(&[CHANGE]).expect_err("already there").to_string();
    assert!(error.contains("has this change already"), "{error}");
}

#[test]
fn a_long_hunk_is_shown_in_part() {
    let bench = Bench::new();
    let long: String = (0..200).map(|n| format!("line number {n} of the file\n")).collect();
    let body: String = long.lines().map(|line| format!(" {line}\n")).collect();
    bench.write("work/tree/long", &long.replace("number 100 of", "number 100 in"));
    let error = bench
        .apply(&[&format!("--- a/long\n+++ b/long\n@@ -1,200 +1,201 @@\n+new\n{body}")])
        .expect_err("does not apply")
        .to_string();
    assert!(error.lines().count() < 40 && error.contains("! line number 100 of the file"), "{error}");
    assert!(error.contains("(97 equal lines)"), "{error}");
}

#[test]
fn a_crash_at_any_point_is_undone() {
    let bench = Bench::new();
    let tree = bench.work().join("tree");
    let before = bench.snapshot();
    let shapes = SHAPES.split_once("diff --git a/link b/link").expect("the rest").0;
    // While saving: the journal is not complete, the tree untouched.
    bench.write("work/applied.making/journal.json", "{");
    restore(&bench.work()).expect("restores");
    bench.is_pristine(&before);
    // While applying: files half written, gone, or not yet made.
    for crash in 0..4 {
        bench.apply(&[CHANGE, shapes]).expect("applies");
        match crash {
            0 => fs::write(tree.join("fs/ext4/parent file.c"), "half").expect("half a file"),
            1 => fs::remove_dir_all(tree.join("new")).expect("not made yet"),
            2 => fs::write(tree.join("Makefile"), "obj-").expect("half removed"),
            _ => fs::remove_dir_all(tree.join("fs")).expect("between two names"),
        }
        // While restoring: a part is back already, a leftover lies around.
        bench.write(&format!("work/tree/{FILE}"), ORIGINAL);
        bench.write("work/applied/fresh", "half");
        restore(&bench.work()).expect("restores");
        bench.is_pristine(&before);
    }
    // While removing the journal.
    bench.write("work/applied.done/journal.json", "{");
    restore(&bench.work()).expect("restores");
    bench.is_pristine(&before);
    // The tree was deleted with the journal left behind.
    bench.apply(&[CHANGE]).expect("applies");
    fs::remove_dir_all(&tree).expect("removed");
    restore(&bench.work()).expect("forgets");
    assert!(!tree.exists() && !bench.work().join("applied").exists());
}

#[test]
fn a_cancelled_apply_leaves_the_tree_pristine() {
    let bench = Bench::new();
    let before = bench.snapshot();
    bench.cancel.request();
    let _ = bench.apply(&[CHANGE]);
    restore(&bench.work()).expect("restores");
    bench.is_pristine(&before);
}

#[test]
fn a_journal_of_another_version_is_not_touched() {
    let bench = Bench::new();
    bench.write("work/applied/journal.json", r#"{"version":9,"entries":[],"made_folders":[]}"#);
    let error = restore(&bench.work()).expect_err("unknown").to_string();
    assert!(error.contains("version 9 instead of 1") && error.contains("delete the folder"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_read_without_a_panic(
        head in prop::sample::select(vec!["", "From a@b Thu Jan  1 00:00:00 1970\n", "From: a\nSubject: [PATCH 1/2] b\n", "Content-Type: multipart/mixed; boundary=x\n"]),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        text in "(\n|--- a/f\n|\\+\\+\\+ b/f\n|@@ -1 \\+1 @@\n|[-+ ]x\n|=3D|--x\n|diff --git a/f b/g\n|\\PC){0,40}",
    ) {
        let bench = Bench::new();
        let mut content = head.as_bytes().to_vec();
        content.extend(text.as_bytes());
        content.extend(&bytes);
        fs::write(bench.root.join("x"), &content).expect("a file");
        let _ = bench.read("x");
    }
}
