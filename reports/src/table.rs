//! ASCII tables for mail: columns aligned, numbers on the decimal point, at most 72 columns where
//! the content allows it. Read [`Table`] first.

/// Widest line of a mail outside tables.
pub const WIDTH: usize = 72;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers, aligned on the decimal point.
    Decimal,
}

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Table {
    header: Vec<String>,
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            header: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
            align: columns.iter().map(|(_, align)| *align).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.header.len(), String::new());
        self.rows.push(row);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table, each line indented by two blanks and without blanks at its end.
    pub fn render(&self) -> String {
        let columns: Vec<Vec<String>> = (0..self.header.len()).map(|index| self.column(index)).collect();
        let lines = (0..=self.rows.len()).map(|line| {
            let cells: Vec<&str> = columns.iter().map(|column| column[line].as_str()).collect();
            format!("  {}", cells.join("  ")).trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// All cells of one column, header first, padded to one width.
    fn column(&self, index: usize) -> Vec<String> {
        let header = &self.header[index];
        let cells: Vec<&str> = self.rows.iter().map(|row| row[index].as_str()).collect();
        let tail = |cell: &str| numeric_tail(cell);
        let longest_tail = cells.iter().map(|cell| tail(cell)).max().unwrap_or(0);
        let decimal = self.align[index] == Align::Decimal;
        let aligned: Vec<String> = cells
            .iter()
            .map(|cell| {
                let pad = if decimal && !cell.is_empty() { longest_tail - tail(cell) } else { 0 };
                format!("{cell}{}", " ".repeat(pad))
            })
            .collect();
        let width = aligned
            .iter()
            .map(|cell| cell.chars().count())
            .chain([header.chars().count()])
            .max()
            .unwrap_or(0);
        let place = |cell: &str| match decimal {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        };
        std::iter::once(place(header)).chain(aligned.iter().map(|cell| place(cell))).collect()
    }
}

/// Characters of a cell from its first decimal point on.
fn numeric_tail(cell: &str) -> usize {
    let number_end = cell.find(['.', ' ']).unwrap_or(cell.len());
    cell.len() - number_end
}

/// Wraps `text` at [`WIDTH`] columns; every line begins with `indent`, the first with `first`.
/// Words longer than a line stand alone on one.
pub fn wrap(text: &str, first: &str, indent: &str) -> String {
    let mut out = String::new();
    for (number, paragraph) in text.lines().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let mut line = if number == 0 { first.to_owned() } else { indent.to_owned() };
        let mut empty = true;
        // A number and its percent sign stay on one line.
        let paragraph = paragraph.replace(" %", "\u{1}%");
        for word in paragraph.split_whitespace() {
            let word = word.replace('\u{1}', " ");
            if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
                out.push_str(line.trim_end());
                out.push('\n');
                line = indent.to_owned();
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(&word);
            empty = false;
        }
        out.push_str(line.trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_on_their_decimal_point() {
        let mut table = Table::new(&[("arm", Align::Left), ("value", Align::Decimal), ("note", Align::Left)]);
        table.row(["parent", "1,350.2", ""]);
        table.row(["child", "62.25", "x"]);
        table.row(["none", "7", "y"]);
        insta::assert_snapshot!(table.render(), @r"
        arm        value  note
        parent  1,350.2
        child      62.25  x
        none        7     y
        ");
    }

    #[test]
    fn text_is_wrapped_at_72_columns_and_long_words_survive() {
        let long = "x".repeat(80);
        let text = wrap(&format!("{} {long} end", "word ".repeat(20)), "- ", "  ");
        for line in text.lines().filter(|line| !line.contains('x')) {
            assert!(line.len() <= WIDTH, "{line}");
        }
        assert!(text.contains(&long));
        assert!(text.starts_with("- word"));
    }
}
