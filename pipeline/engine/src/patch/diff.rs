//! Reads unified diffs out of any text and writes them back in git's own form. Read [`FileDiff`]
//! first, then [`parse`].

use std::fmt::Write as _;

use super::name::{git_names, quoted, unquoted};

/// What a patch does to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiff {
    /// The kind of change.
    pub change: Change,
    /// Path before the change, without `a/`.
    pub old: String,
    /// Path after the change, without `b/`.
    pub new: String,
    /// The changed places, in the order of the file.
    pub hunks: Vec<Hunk>,
    /// Lines about modes, similarity and blobs, as they were.
    extended: Vec<String>,
    /// The lines of a `GIT binary patch`.
    binary: Vec<String>,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The file stays where it is.
    Modify,
    /// The file must not exist yet.
    Create,
    /// The file goes away.
    Delete,
    /// The file gets another name.
    Rename,
    /// The file gets a twin.
    Copy,
}

/// One changed place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// First line before the change; 0 for an empty side.
    pub old_start: u32,
    /// Lines before the change.
    pub old_len: u32,
    /// First line after the change.
    pub new_start: u32,
    /// Lines after the change.
    pub new_len: u32,
    /// What follows the second `@@`, usually the name of the function.
    pub section: String,
    /// The lines with their first character (space, `-`, `+` or `\`).
    pub lines: Vec<String>,
}

/// Where and how a text breaks the rules of a diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Line of the text, from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub what: String,
}

/// Finds every file change in `text` and skips what is not a diff. `strip` is the number of
/// leading folders to drop from each name, as `-p` of patch(1).
///
/// # Errors
/// When something begins as a diff and does not go on as one.
pub fn parse(text: &str, strip: usize) -> Result<Vec<FileDiff>, Damage> {
    let carried_with_crlf = text.lines_with_returns().any(|line| {
        line.ends_with('\r') && ["@@ -", "--- ", "+++ "].iter().any(|mark| line.starts_with(mark))
    });
    let lines = text
        .lines_with_returns()
        .map(|line| if carried_with_crlf { line.strip_suffix('\r').unwrap_or(line) } else { line })
        .collect();
    let mut reader = Reader { lines, at: 0, strip };
    let mut files = Vec::new();
    while let Some(line) = reader.peek(0) {
        if let Some(names) = line.strip_prefix("diff --git ") {
            files.push(reader.git_file(names)?);
        } else if reader.at_names() && reader.peek(2).is_some_and(|line| line.starts_with("@@ -")) {
            files.push(reader.plain_file()?);
        } else {
            reader.at += 1;
        }
    }
    Ok(files)
}

/// Writes changes in the form that `git apply` takes.
#[must_use]
pub fn render(files: &[FileDiff]) -> String {
    files.iter().map(FileDiff::render).collect()
}

impl FileDiff {
    /// The paths that the change reads or writes.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        [self.old.as_str(), self.new.as_str()].into_iter().take(if self.old == self.new { 1 } else { 2 })
    }

    /// Whether the change is about a submodule rather than a file.
    #[must_use]
    pub fn is_submodule(&self) -> bool {
        self.extended.iter().any(|line| line.ends_with(" 160000"))
    }

    fn render(&self) -> String {
        let (old, new) = (quoted("a/", &self.old), quoted("b/", &self.new));
        let mut text = format!("diff --git {old} {new}\n");
        for line in &self.extended {
            let _ = writeln!(text, "{line}");
        }
        let verb = match self.change {
            Change::Rename => Some("rename"),
            Change::Copy => Some("copy"),
            _ => None,
        };
        if let Some(verb) = verb {
            let (from, to) = (quoted("", &self.old), quoted("", &self.new));
            let _ = writeln!(text, "{verb} from {from}\n{verb} to {to}");
        }
        if !self.hunks.is_empty() {
            // git ends names with spaces at a tab.
            let end = |name: &str| if name.contains(' ') { "\t" } else { "" };
            let (old_end, new_end) = (end(&old), end(&new));
            match self.change {
                Change::Create => text.push_str("--- /dev/null\n"),
                _ => {
                    let _ = writeln!(text, "--- {old}{old_end}");
                }
            }
            match self.change {
                Change::Delete => text.push_str("+++ /dev/null\n"),
                _ => {
                    let _ = writeln!(text, "+++ {new}{new_end}");
                }
            }
        }
        for line in
            self.hunks.iter().flat_map(|hunk| std::iter::once(hunk.header()).chain(hunk.lines.clone()))
        {
            let _ = writeln!(text, "{line}");
        }
        for line in &self.binary {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

impl Hunk {
    /// The `@@ … @@` line.
    #[must_use]
    pub fn header(&self) -> String {
        let Self { old_start, old_len, new_start, new_len, section, .. } = self;
        format!("@@ -{old_start},{old_len} +{new_start},{new_len} @@{section}")
    }

    /// The lines that the file must have for the hunk to apply.
    pub fn expected(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| line.strip_prefix([' ', '-']))
    }

    fn read_header(line: &str) -> Option<Self> {
        let (ranges, section) = line.strip_prefix("@@ -")?.split_once(" @@")?;
        let (old, new) = ranges.split_once(" +")?;
        let range = |text: &str| -> Option<(u32, u32)> {
            let (start, len) = text.split_once(',').unwrap_or((text, "1"));
            Some((start.parse().ok()?, len.parse().ok()?))
        };
        let ((old_start, old_len), (new_start, new_len)) = (range(old)?, range(new)?);
        Some(Self { old_start, old_len, new_start, new_len, section: section.to_owned(), lines: Vec::new() })
    }
}

struct Reader<'t> {
    lines: Vec<&'t str>,
    at: usize,
    strip: usize,
}

impl<'t> Reader<'t> {
    fn peek(&self, ahead: usize) -> Option<&'t str> {
        self.lines.get(self.at.saturating_add(ahead)).copied()
    }

    fn damage<T>(&self, what: impl Into<String>) -> Result<T, Damage> {
        Err(Damage { line: self.at + 1, what: what.into() })
    }

    /// Whether `---` and `+++` lines come next.
    fn at_names(&self) -> bool {
        self.peek(0).is_some_and(|line| line.starts_with("--- "))
            && self.peek(1).is_some_and(|line| line.starts_with("+++ "))
    }

    /// A file of `diff -u`: names with time stamps, then hunks.
    fn plain_file(&mut self) -> Result<FileDiff, Damage> {
        let (old_side, new_side) = self.sides(self.strip)?;
        let hunks = self.hunks()?;
        let empty = |start_len: fn(&Hunk) -> (u32, u32)| hunks.iter().all(|hunk| start_len(hunk) == (0, 0));
        let (change, old, new) = match (old_side.name, new_side.name) {
            (None, Some(new)) => (Change::Create, new.clone(), new),
            (Some(old), None) => (Change::Delete, old.clone(), old),
            (Some(old), Some(new)) => {
                // `x.c` and `x.c.orig` are the same file: the shorter name is the real one.
                let name = if new.starts_with(&old) { old } else { new };
                let change = if old_side.epoch && empty(|hunk| (hunk.old_start, hunk.old_len)) {
                    Change::Create
                } else if new_side.epoch && empty(|hunk| (hunk.new_start, hunk.new_len)) {
                    Change::Delete
                } else {
                    Change::Modify
                };
                (change, name.clone(), name)
            }
            (None, None) => return self.damage("both names of a file are /dev/null"),
        };
        let extended = match change {
            Change::Create => vec!["new file mode 100644".to_owned()],
            Change::Delete => vec!["deleted file mode 100644".to_owned()],
            _ => Vec::new(),
        };
        Ok(FileDiff { change, old, new, hunks, extended, binary: Vec::new() })
    }

    /// A file of `git diff`, from its `diff --git` line on.
    fn git_file(&mut self, names: &str) -> Result<FileDiff, Damage> {
        let Some((first, second)) = git_names(names) else {
            return self.damage(format!("cannot read two file names in `diff --git {names}`"));
        };
        // diff.noprefix writes the same name twice.
        let strip = if self.strip == 1 && first == second { 0 } else { self.strip };
        let (old, new) = (self.stripped(&first, strip)?, self.stripped(&second, strip)?);
        let mut file = FileDiff {
            change: Change::Modify,
            old,
            new,
            hunks: Vec::new(),
            extended: Vec::new(),
            binary: Vec::new(),
        };
        self.at += 1;
        while let Some(line) = self.peek(0) {
            let keep = ["index ", "similarity index ", "dissimilarity index ", "old mode ", "new mode "];
            if let Some(name) = after(line, &["rename from ", "copy from "]) {
                file.change = if line.starts_with("rename") { Change::Rename } else { Change::Copy };
                file.old = self.stripped(&unquoted(name), self.strip.saturating_sub(1))?;
            } else if let Some(name) = after(line, &["rename to ", "copy to "]) {
                file.new = self.stripped(&unquoted(name), self.strip.saturating_sub(1))?;
            } else if line.starts_with("new file mode ") {
                file.change = Change::Create;
                file.extended.push(line.to_owned());
            } else if line.starts_with("deleted file mode ") {
                file.change = Change::Delete;
                file.extended.push(line.to_owned());
            } else if after(line, &keep).is_some() {
                file.extended.push(line.to_owned());
            } else {
                break;
            }
            self.at += 1;
        }
        if self.peek(0).is_some_and(|line| line.starts_with("Binary files ")) {
            return self.damage(format!(
                "the change of the binary file {} has no content; make the patch with `git diff --binary`",
                file.new
            ));
        }
        if self.peek(0) == Some("GIT binary patch") {
            file.binary = self.binary();
        } else if self.at_names() {
            let (old, new) = self.sides(strip)?;
            match (old.name, new.name) {
                (None, None) => return self.damage("both names of a file are /dev/null"),
                (None, _) => file.change = Change::Create,
                (_, None) => file.change = Change::Delete,
                (Some(old), Some(new)) if file.change == Change::Modify => (file.old, file.new) = (old, new),
                _ => {}
            }
            file.hunks = self.hunks()?;
        }
        match file.change {
            Change::Create => file.old.clone_from(&file.new),
            Change::Delete => file.new.clone_from(&file.old),
            Change::Modify if file.old != file.new => {
                return self.damage(format!("{} becomes {} without a rename", file.old, file.new));
            }
            _ => {}
        }
        let says = |mark: &str| file.extended.iter().any(|line| line.starts_with(mark));
        if file.change == Change::Create && !says("new file mode ") {
            file.extended.insert(0, "new file mode 100644".into());
        } else if file.change == Change::Delete && !says("deleted file mode ") {
            file.extended.insert(0, "deleted file mode 100644".into());
        }
        Ok(file)
    }

    /// The `---` and `+++` lines.
    fn sides(&mut self, strip: usize) -> Result<(Side, Side), Damage> {
        let mut read = || -> Result<Side, Damage> {
            let line = self.peek(0).and_then(|line| line.get(4..)).unwrap_or_default();
            let (name, stamp) = line.split_once('\t').unwrap_or((line, ""));
            let name = unquoted(name.trim_end());
            let name = if name == "/dev/null" { None } else { Some(self.stripped(&name, strip)?) };
            self.at += 1;
            // diff -N stamps a missing file with the epoch, in the local time zone.
            let epoch = stamp.starts_with("1970-01-01") || stamp.starts_with("1969-12-31");
            Ok(Side { name, epoch })
        };
        Ok((read()?, read()?))
    }

    fn hunks(&mut self) -> Result<Vec<Hunk>, Damage> {
        let mut hunks = Vec::new();
        while let Some(line) = self.peek(0).filter(|line| line.starts_with("@@ -")) {
            let Some(mut hunk) = Hunk::read_header(line) else {
                return self.damage(format!("{line:?} is no hunk header such as `@@ -1,7 +1,8 @@`"));
            };
            self.at += 1;
            self.hunk_body(&mut hunk)?;
            hunks.push(hunk);
        }
        if hunks.is_empty() {
            return self.damage("the names of a file are followed by no hunk `@@ … @@`");
        }
        Ok(hunks)
    }

    fn hunk_body(&mut self, hunk: &mut Hunk) -> Result<(), Damage> {
        let (mut old, mut new) = (hunk.old_len, hunk.new_len);
        while old > 0 || new > 0 {
            let line = self.peek(0);
            let used = match line.map(|line| line.chars().next().unwrap_or(' ')) {
                Some(' ') if old > 0 && new > 0 => (1, 1),
                Some('-') if old > 0 => (1, 0),
                Some('+') if new > 0 => (0, 1),
                Some('\\') if !hunk.lines.is_empty() => (0, 0),
                _ => {
                    let found =
                        line.map_or_else(|| "the text ends".into(), |line| format!("{line:?} follows"));
                    return self.damage(format!(
                        "the hunk `{}` still lacks {old} old and {new} new lines, but {found}; mail programs \
                         wrap long lines: save the raw mail or make the patch again",
                        hunk.header()
                    ));
                }
            };
            (old, new) = (old - used.0, new - used.1);
            // Some mail programs drop the space of an empty context line.
            hunk.lines.push(line.filter(|line| !line.is_empty()).unwrap_or(" ").to_owned());
            self.at += 1;
        }
        if let Some(line) = self.peek(0).filter(|line| line.starts_with("\\ ")) {
            hunk.lines.push(line.to_owned());
            self.at += 1;
        }
        match self.peek(0) {
            Some(line)
                if (line.starts_with('+') && !line.starts_with("+++ "))
                    || (line.starts_with('-') && !line.starts_with("--")) =>
            {
                self.damage(format!(
                    "{line:?} follows the hunk `{}`, which has all its lines already; if the patch was edited \
                     by hand, correct the counts with `recountdiff` or make it again",
                    hunk.header()
                ))
            }
            _ => Ok(()),
        }
    }

    fn binary(&mut self) -> Vec<String> {
        let mut lines = vec!["GIT binary patch".to_owned()];
        self.at += 1;
        while self.peek(0).is_some_and(|line| after(line, &["literal ", "delta "]).is_some()) {
            while let Some(line) = self.peek(0).filter(|line| !line.is_empty()) {
                lines.push(line.to_owned());
                self.at += 1;
            }
            lines.push(String::new());
            self.at += 1;
        }
        lines
    }

    /// `name` without its first `strip` folders; an absolute name stays, to be refused later.
    fn stripped(&self, name: &str, strip: usize) -> Result<String, Damage> {
        if name.starts_with('/') {
            return Ok(name.to_owned());
        }
        match name.splitn(strip + 1, '/').nth(strip) {
            Some(rest) if !rest.is_empty() => Ok(rest.to_owned()),
            _ => self.damage(format!(
                "the file name {name:?} has no leading folder such as a/ to strip; make the patch with \
                 `git diff`, or from above the tree with `diff -urp old new`"
            )),
        }
    }
}

struct Side {
    name: Option<String>,
    epoch: bool,
}

trait Lines {
    /// As `str::lines`, but a carriage return stays.
    fn lines_with_returns(&self) -> impl Iterator<Item = &str>;
}

impl Lines for str {
    fn lines_with_returns(&self) -> impl Iterator<Item = &str> {
        self.split_inclusive('\n').map(|line| line.strip_suffix('\n').unwrap_or(line))
    }
}

fn after<'l>(line: &'l str, marks: &[&str]) -> Option<&'l str> {
    marks.iter().find_map(|mark| line.strip_prefix(mark))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, rendered: &str) {
        let files = parse(text, 1).expect(text);
        assert_eq!(render(&files), rendered);
        assert_eq!(parse(&render(&files), 1).expect("its own output"), files);
    }

    #[test]
    fn text_around_a_diff_is_dropped_and_short_counts_are_written_out() {
        check(
            "why\n---\n f | 2 +-\n\ndiff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -3 +3 @@ int x\n-a\n+b\n-- \n2.47\n",
            "diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -3,1 +3,1 @@ int x\n-a\n+b\n",
        );
    }

    #[test]
    fn diff_urp_becomes_the_form_of_git() {
        check(
            "diff -urpN old/x/f new/x/f\n--- old/x/f\t2024-01-02 03:04:05.0 +0000\n+++ new/x/f\t2024-01-02\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n--- old/n\t1970-01-01 01:00:00\n+++ new/n\t2024-01-02\n@@ -0,0 +1 @@\n+n\n",
            "diff --git a/x/f b/x/f\n--- a/x/f\n+++ b/x/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\ndiff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1,1 @@\n+n\n",
        );
    }

    #[test]
    fn names_with_quotes_and_spaces_survive() {
        check(
            "diff --git \"a/t\\tab \\303\\244\" \"b/t\\tab \\303\\244\"\nold mode 100644\nnew mode 100755\n",
            "diff --git \"a/t\\011ab \\303\\244\" \"b/t\\011ab \\303\\244\"\nold mode 100644\nnew mode 100755\n",
        );
        check(
            "diff --git a/a b c b/a b c\nold mode 100644\nnew mode 100755\n",
            "diff --git a/a b c b/a b c\nold mode 100644\nnew mode 100755\n",
        );
    }

    #[test]
    fn renames_copies_prefixless_and_carriage_returns_are_read() {
        check(
            "diff --git a/x b/y\r\nsimilarity index 100%\r\nrename from x\r\nrename to y\r\ndiff --git d/f d/f\r\n--- d/f\r\n+++ d/f\r\n@@ -1 +1 @@\r\n-a\r\n+b\r\n",
            "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\ndiff --git a/d/f b/d/f\n--- a/d/f\n+++ b/d/f\n@@ -1,1 +1,1 @@\n-a\n+b\n",
        );
    }

    #[test]
    fn a_wrapped_line_is_named() {
        let damage = parse("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\ntwo\n-x\n+y\n", 1).expect_err("wrapped");
        assert_eq!(damage.line, 5);
        assert!(
            damage.what.contains("lacks 1 old and 1 new lines") && damage.what.contains("\"two\""),
            "{damage:?}"
        );
    }

    #[test]
    fn a_line_too_many_is_named() {
        let damage = parse("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n+z\n", 1).expect_err("edited");
        assert_eq!(damage.line, 6);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(diff --git |--- |\\+\\+\\+ |@@ -1,2 \\+3 @@|a/|b/|\"|\\\\[0-7nt]|[ \n\r\t]|rename from |\\PC){0,60}") {
            if let Ok(files) = parse(&text, 1) {
                let rendered = render(&files);
                prop_assert_eq!(render(&parse(&rendered, 1).expect("its own output")), rendered);
            }
        }

        #[test]
        fn any_hunk_survives_a_round_trip(old in proptest::collection::vec("[a-z ]{0,4}", 1..9), new in proptest::collection::vec("[a-z ]{0,4}", 1..9)) {
            let mut text = format!("--- a/f\n+++ b/f\n@@ -1,{} +1,{} @@\n", old.len(), new.len());
            for line in &old { text.push_str(&format!("-{line}\n")); }
            for line in &new { text.push_str(&format!("+{line}\n")); }
            let files = parse(&text, 1).expect("a diff");
            prop_assert_eq!(files[0].hunks[0].lines.len(), old.len() + new.len());
            prop_assert_eq!(parse(&render(&files), 1).expect("its own output"), files);
        }
    }
}
