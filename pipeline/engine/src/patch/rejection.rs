//! Explains why a patch does not apply: which hunk of which file, what it expects, and what the
//! file has at the place that is most like it. Read [`report`] first.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;

use camino::Utf8Path;
use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::diff::{Change, FileDiff, Hunk};
use super::journal::git_apply;
use crate::layout::Context;
use crate::process::ProcessError;

/// Files that a report explains; the others are counted.
const FILES: usize = 4;
/// Lines shown of one hunk.
const ROWS: usize = 30;
/// Equal lines shown around a difference.
const AROUND: usize = 3;
/// Width of a column; two of them and the margin fit a wide terminal.
const WIDTH: usize = 58;
/// Columns of a tab: half of the kernel's, so that more of a line fits.
const TAB: usize = 4;
/// Lines that may have come in between those of the hunk.
const SLACK: usize = 8;
/// Share of the hunk's text that a place must have to be shown.
const ALIKE: f64 = 0.3;

/// Describes the failure of `git apply`, which said `said`, for the patch file `name` of the journal.
///
/// # Errors
/// When the user asks to stop meanwhile.
pub(super) fn report(
    ctx: &Context,
    folder: &Utf8Path,
    name: &str,
    files: &[FileDiff],
    said: &str,
) -> Result<String, ProcessError> {
    let would = |arguments: &[&str]| match git_apply(folder, name)
        .arg("--check")
        .args(arguments.iter().copied())
        .output(ctx.cancel)
    {
        Ok(_) => Ok(true),
        Err(ProcessError::Failed { .. }) => Ok(false),
        Err(error) => Err(error),
    };
    if would(&["--reverse"])? {
        return Ok("the tree has this change already (the patch applies in reverse); leave it out".into());
    }
    let mut blocks: Vec<String> =
        said.lines().filter_map(|line| complaint(&folder.join("tree"), files, line)).collect();
    if blocks.is_empty() {
        blocks.push(said.to_owned());
    }
    let more = blocks.len().saturating_sub(FILES);
    blocks.truncate(FILES);
    if more > 0 {
        blocks.push(format!("and {more} more files"));
    }
    blocks.push(
        if would(&["--ignore-whitespace"])? {
            "It applies when white space is ignored: a mail program or an editor changed tabs or line ends. Save \
             the raw mail, or make the patch again."
        } else {
            "Choose the kernel that the patch was made for, add the patches that it builds on before it, or port \
             it to this kernel."
        }
        .into(),
    );
    Ok(blocks.join("\n\n"))
}

/// Explains one line of git's complaints; `None` for lines that only repeat.
fn complaint(tree: &Utf8Path, files: &[FileDiff], line: &str) -> Option<String> {
    let text = line.strip_prefix("error: ")?;
    let file_named = |name: &str| files.iter().find(|file| file.paths().any(|path| path == name));
    if let Some(place) = text.strip_prefix("patch failed: ") {
        let (name, start) = place.rsplit_once(':')?;
        let start: u32 = start.parse().ok()?;
        let file = file_named(name)?;
        let index = file.hunks.iter().position(|hunk| hunk.old_start == start)?;
        return Some(explain_hunk(tree, file, index));
    }
    let (name, what) = text.rsplit_once(": ")?;
    let file = file_named(name)?;
    match what {
        "patch does not apply" => None,
        "No such file or directory" => Some(format!(
            "{name}: this tree has no such file. It has another name here, or an earlier patch adds it."
        )),
        "already exists in working directory" if file.change == Change::Create => {
            Some(format!("{name}: the patch creates this file, but the tree has it already."))
        }
        _ => Some(format!("{name}: {what}")),
    }
}

/// Shows a hunk beside the place of the file that is most like it.
fn explain_hunk(tree: &Utf8Path, file: &FileDiff, index: usize) -> String {
    let hunk = &file.hunks[index];
    let mut text = format!("{}, hunk {} of {}: {}\n", file.old, index + 1, file.hunks.len(), hunk.header());
    let bytes = fs::read(tree.join(&file.old)).unwrap_or_default();
    let content = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = content.lines().collect();
    let expected: Vec<&str> = hunk.expected().collect();
    let rows = match likely_place(hunk, &expected, &lines) {
        Some(place) => {
            let window = &lines[place..(place + expected.len() + SLACK).min(lines.len())];
            let rows = side_by_side(&expected, window, place + 1);
            let line = rows.iter().find_map(|row| row.right.map(|(number, _)| number)).unwrap_or(1);
            let _ = writeln!(
                text,
                "the most similar place of the file begins at line {line}; `!` marks what differs:"
            );
            rows
        }
        None => {
            let _ = writeln!(text, "nothing in the file is like what the hunk expects, which is:");
            expected.iter().map(|line| Row { mark: ' ', left: Some(line), right: None }).collect()
        }
    };
    text.push_str(&table(&rows));
    if rows.iter().any(|row| row.mark == '~') {
        text.push_str("`~` marks lines that differ in white space only\n");
    }
    text.trim_end().to_owned()
}

/// One line of the comparison; the right side with its line number.
struct Row<'l> {
    mark: char,
    left: Option<&'l str>,
    right: Option<(usize, &'l str)>,
}

impl Row<'_> {
    /// Both sides, clipped so that a difference far to the right can be seen.
    fn columns(&self) -> (String, String) {
        let (left, right) =
            (self.left.unwrap_or_default(), self.right.map(|(_, line)| line).unwrap_or_default());
        let common = left.chars().zip(right.chars()).take_while(|(a, b)| a == b).count();
        let longest = left.chars().count().max(right.chars().count());
        if self.mark == ' ' || common < WIDTH / 2 || longest + 2 * TAB < WIDTH {
            return (clipped(left), clipped(right));
        }
        let tail =
            |line: &str| clipped(&format!("..{}", line.chars().skip(common - WIDTH / 4).collect::<String>()));
        (tail(left), tail(right))
    }
}

/// Index of the first line of the place that shares the most text with `expected`; the nearest to
/// where the hunk says among equals. Long lines count more: `}` is everywhere.
fn likely_place(hunk: &Hunk, expected: &[&str], lines: &[&str]) -> Option<usize> {
    let weight = |line: &str| line.trim().len().min(40);
    // For each expected line: its weight, how often it is expected, how often the window has it.
    let mut counts: HashMap<String, (usize, usize, usize)> = HashMap::new();
    for line in expected {
        let count = counts.entry(squeezed(line)).or_insert((weight(line), 0, 0));
        count.1 += 1;
    }
    let total: usize = expected.iter().map(|line| weight(line)).sum();
    let keys: Vec<String> = lines.iter().map(|line| squeezed(line)).collect();
    let wanted = usize::try_from(hunk.old_start.saturating_sub(1)).unwrap_or(usize::MAX);
    let length = expected.len() + SLACK;
    let (mut sum, mut best) = (0, (0, usize::MAX, 0));
    for end in 1..keys.len() + length {
        if let Some((weight, wants, has)) = keys.get(end - 1).and_then(|key| counts.get_mut(key)) {
            *has += 1;
            sum += if *has <= *wants { *weight } else { 0 };
        }
        let Some(start) = end.checked_sub(length) else { continue };
        let distance = start.abs_diff(wanted);
        if sum > best.0 || (sum == best.0 && distance < best.1) {
            best = (sum, distance, start);
        }
        if let Some((weight, wants, has)) = keys.get(start).and_then(|key| counts.get_mut(key)) {
            sum -= if *has <= *wants { *weight } else { 0 };
            *has -= 1;
        }
    }
    (total > 0 && best.0 as f64 >= ALIKE * total as f64).then_some(best.2)
}

/// A line with every run of white space made one space.
fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn side_by_side<'l>(expected: &[&'l str], window: &[&'l str], first: usize) -> Vec<Row<'l>> {
    let (left, right): (Vec<_>, Vec<_>) =
        (expected.iter().map(|l| squeezed(l)).collect(), window.iter().map(|l| squeezed(l)).collect());
    let found = |index: usize| (first + index, window[index]);
    let mut rows = Vec::new();
    for op in capture_diff_slices(Algorithm::Myers, &left, &right) {
        let (old, new) = (op.old_range(), op.new_range());
        let equal = matches!(op, DiffOp::Equal { .. });
        for step in 0..old.len().max(new.len()) {
            let left = (step < old.len()).then(|| expected[old.start + step]);
            let right = (step < new.len()).then(|| found(new.start + step));
            let same = left == right.map(|(_, line)| line);
            let mark = match (equal, same) {
                (true, true) => ' ',
                (true, false) => '~',
                _ => '!',
            };
            rows.push(Row { mark, left, right });
        }
    }
    let wanted = |row: &Row| row.left.is_some();
    let start = rows.iter().position(wanted).unwrap_or(0);
    let end = rows.iter().rposition(wanted).map_or(rows.len(), |end| end + 1);
    rows.truncate(end);
    rows.split_off(start)
}

/// The rows as text; runs of equal lines far from a difference and what exceeds [`ROWS`] are elided.
fn table(rows: &[Row]) -> String {
    let near = |index: usize| {
        rows.len() <= ROWS
            || rows[index.saturating_sub(AROUND)..(index + AROUND + 1).min(rows.len())]
                .iter()
                .any(|row| row.mark != ' ' || row.right.is_none())
    };
    let width = rows.iter().map(|row| row.columns().0.chars().count()).max().unwrap_or(0);
    let width = width.max("expected by the patch".len());
    let mut text = String::new();
    let two_columns = rows.iter().any(|row| row.right.is_some());
    if two_columns {
        let _ = writeln!(text, "    {:<width$} | found in the tree", "expected by the patch");
    }
    let (mut shown, mut skipped) = (0, 0);
    for (index, row) in rows.iter().enumerate() {
        if !near(index) || shown >= ROWS {
            skipped += 1;
            continue;
        }
        if skipped > 0 {
            let _ = writeln!(text, "    ({skipped} equal lines)");
            skipped = 0;
        }
        let (left, right) = row.columns();
        let line = match two_columns {
            true => format!("  {} {left:<width$} | {right}", row.mark),
            false => format!("    {left}"),
        };
        let _ = writeln!(text, "{}", line.trim_end());
        shown += 1;
    }
    if skipped > 0 {
        let _ = writeln!(text, "    ({skipped} more lines)");
    }
    text
}

/// A line with tabs as spaces, cut to a column, without control characters.
fn clipped(line: &str) -> String {
    let mut text = String::new();
    let mut columns = 0;
    for c in line.chars() {
        let steps = if c == '\t' { TAB - columns % TAB } else { 1 };
        if columns + steps > WIDTH {
            text.push_str("..");
            break;
        }
        match c {
            '\t' => text.extend(std::iter::repeat_n(' ', steps)),
            c if c.is_control() => text.push('?'),
            c => text.push(c),
        }
        columns += steps;
    }
    text
}
