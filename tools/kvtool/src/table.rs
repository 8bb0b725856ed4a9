//! [`Table`]: what every command prints its figures with.
//!
//! A column says what it holds and how important it is. In a file or a pipe, a table is Markdown
//! with all of its columns. In a terminal it fits the width: first long heads and text are wrapped,
//! then the least important columns are left out, and named below. Where not even the important
//! ones fit, each row becomes a block of lines. The plain form has a line for each row, with tabs.
//! Reports have tables of HTML.

use std::fmt::Display;

use comfy_table::{CellAlignment, ColumnConstraint, LineStyle, Width, presets};

use crate::markup::{Markup, element, words};
use crate::text::wrapped;

/// Text is wrapped to no less than this, if it is longer.
const LEAST_TEXT: usize = 24;
/// Between columns, in a terminal.
const GAP: usize = 2;

pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

pub(crate) struct Column {
    head: String,
    holds: Holds,
    importance: Importance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Text,
    /// Numbers, which are aligned at their points and units.
    Numbers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Importance {
    Detail,
    Usual,
    /// What a row is about, or what it was made for.
    Key,
}

/// A column of text.
pub(crate) fn text(head: impl Display) -> Column {
    Column { head: head.to_string(), holds: Holds::Text, importance: Importance::Usual }
}

/// A column of numbers, with units or without.
pub(crate) fn number(head: impl Display) -> Column {
    Column { holds: Holds::Numbers, ..text(head) }
}

impl Column {
    /// Never left out.
    pub(crate) fn key(self) -> Column {
        Column { importance: Importance::Key, ..self }
    }

    /// Left out first.
    pub(crate) fn detail(self) -> Column {
        Column { importance: Importance::Detail, ..self }
    }
}

/// How a table is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Markdown,
    /// For a terminal of this many characters.
    Within(usize),
    Plain,
}

impl Table {
    /// A table of these rows, which have a cell for each column.
    pub(crate) fn new(columns: impl IntoIterator<Item = Column>, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
        Table { columns: columns.into_iter().collect(), rows: rows.into_iter().collect() }
    }

    /// Names and what they stand for.
    pub(crate) fn of_pairs<N: Display>(
        [name, value]: [Column; 2],
        pairs: impl IntoIterator<Item = (N, String)>,
    ) -> Table {
        let row = |(name, value): (N, String)| vec![name.to_string(), value];
        Table::new([name.key(), value.key()], pairs.into_iter().map(row))
    }

    /// The figures as documents have them, measured by `command`.
    pub(crate) fn to_figures(&self, name: &str, command: &str) -> tamis_figures::Table {
        let heads: Vec<&str> = self.columns.iter().map(|column| &*column.head).collect();
        let text_columns = self.columns.iter().take_while(|column| column.holds == Holds::Text).count();
        let mut figures = tamis_figures::Table::new(name, command, &heads).text_columns(text_columns);
        self.rows.iter().for_each(|row| figures.row(row));
        figures
    }

    /// The table as HTML.
    pub(crate) fn markup(&self) -> Markup {
        let row = |name: &'static str, cells: Vec<&str>| -> Markup {
            let cells = self.columns.iter().zip(cells).enumerate().map(|(at, (column, cell))| {
                let class = if column.holds == Holds::Numbers { "number" } else { "text" };
                match (name, at) {
                    ("th", _) => element("th", &[("class", &class), ("scope", &"col")], words(cell)),
                    (_, 0) => element("th", &[("class", &class), ("scope", &"row")], words(cell)),
                    _ => element("td", &[("class", &class)], words(cell)),
                }
            });
            element("tr", &[], cells.collect())
        };
        let heads = row("th", self.columns.iter().map(|column| &*column.head).collect());
        let rows = self.rows.iter().map(|cells| row("td", cells.iter().map(|cell| &**cell).collect()));
        let table = element("thead", &[], heads).and(element("tbody", &[], rows.collect()));
        element("div", &[("class", &"wide")], element("table", &[], table))
    }

    /// The lines of the table, and how many of them are heads.
    pub(crate) fn lay_out(&self, layout: Layout) -> (Vec<String>, usize) {
        match layout {
            Layout::Plain => (self.plain(), 1),
            Layout::Markdown => {
                let all: Vec<usize> = (0..self.columns.len()).collect();
                (self.drawn(&all, |table| _ = table.load_style(presets::ASCII_MARKDOWN)), 0)
            }
            Layout::Within(width) => self.within(width),
        }
    }

    fn plain(&self) -> Vec<String> {
        let heads = self.columns.iter().map(|column| column.head.clone()).collect::<Vec<_>>().join("\t");
        let cell = |cell: &String| cell.replace(['\t', '\n'], " ");
        let rows = self.rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>().join("\t"));
        std::iter::once(heads).chain(rows).collect()
    }

    fn within(&self, width: usize) -> (Vec<String>, usize) {
        let widths = self.widths();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        loop {
            let room = width.saturating_sub(shown.len() * GAP);
            let sum = |of: fn(&Widths) -> usize| shown.iter().map(|&at| of(&widths[at])).sum::<usize>();
            if sum(|widths| widths.least) <= room {
                // What is left goes to the columns from the left on.
                let mut left = room - sum(|widths| widths.least);
                let given: Vec<usize> = shown
                    .iter()
                    .map(|&at| {
                        let more = left.min(widths[at].most - widths[at].least);
                        left -= more;
                        widths[at].least + more
                    })
                    .collect();
                return self.fitted(&shown, &given, width);
            }
            // The last one of those that matter least.
            let least = shown.iter().rev().min_by_key(|&&at| self.columns[at].importance).copied();
            match least.filter(|&at| self.columns[at].importance < Importance::Key) {
                Some(least) => shown.retain(|&at| at != least),
                None => return (self.stacked(), 0),
            }
        }
    }

    /// The columns `shown`, of the widths `given`, with a note of those that are not.
    fn fitted(&self, shown: &[usize], given: &[usize], width: usize) -> (Vec<String>, usize) {
        let mut lines = self.drawn(shown, |table| {
            let rule = LineStyle::none().fill('─');
            table.load_style(presets::NOTHING.header_separator(rule));
            for (column, width) in table.column_iter_mut().zip(given) {
                column.set_padding((0, u16::try_from(GAP).unwrap_or_default()));
                let width = u16::try_from(width + GAP).unwrap_or(u16::MAX);
                column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
            }
        });
        let heads = lines.iter().position(|line| line.starts_with('─')).unwrap_or_default();
        let hidden: Vec<&str> =
            (0..self.columns.len()).filter(|at| !shown.contains(at)).map(|at| &*self.columns[at].head).collect();
        if !hidden.is_empty() {
            let note = format!("(no room for {}; --format plain has all)", hidden.join(", "));
            lines.extend(wrapped(&note, width));
        }
        (lines, heads)
    }

    fn drawn(&self, shown: &[usize], style: impl FnOnce(&mut comfy_table::Table)) -> Vec<String> {
        let cells: Vec<Vec<String>> = shown.iter().map(|&at| self.cells(at)).collect();
        let mut table = comfy_table::Table::new();
        table.set_header(shown.iter().map(|&at| &self.columns[at].head));
        table.add_rows(
            (0..self.rows.len()).map(|row| cells.iter().map(|column| column[row].clone()).collect::<Vec<_>>()),
        );
        for (column, &at) in table.column_iter_mut().zip(shown) {
            if self.columns[at].holds == Holds::Numbers {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        style(&mut table);
        table.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// A line for each cell, with its head, and an empty one between rows.
    fn stacked(&self) -> Vec<String> {
        let most = self.columns.iter().map(|column| column.head.chars().count()).max().unwrap_or_default();
        let block = |row: &Vec<String>| {
            let cells = self.columns.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
            cells.map(|(column, cell)| format!("{:most$}  {cell}", column.head)).collect::<Vec<_>>()
        };
        self.rows.iter().map(block).collect::<Vec<_>>().join(&String::new())
    }

    /// The cells of a column, with numbers aligned.
    fn cells(&self, at: usize) -> Vec<String> {
        let cells = || self.rows.iter().map(|row| row.get(at).cloned().unwrap_or_default());
        match self.columns[at].holds {
            Holds::Text => cells().collect(),
            Holds::Numbers => align(&cells().collect::<Vec<_>>()),
        }
    }

    fn widths(&self) -> Vec<Widths> {
        let all = |at: usize| {
            let mut one = comfy_table::Table::new();
            one.add_rows(self.cells(at).into_iter().map(|cell| vec![cell]));
            let cells = one.column_max_content_widths().first().map_or(1, |width| usize::from(*width));
            let column = &self.columns[at];
            let word = column.head.split(' ').map(|word| word.chars().count()).max().unwrap_or_default();
            let least = match column.holds {
                Holds::Numbers => cells,
                Holds::Text => cells.min(LEAST_TEXT),
            };
            Widths { least: least.max(word), most: cells.max(column.head.chars().count()) }
        };
        (0..self.columns.len()).map(all).collect()
    }
}

/// Characters that a column needs with heads and text wrapped, and without that.
struct Widths {
    least: usize,
    most: usize,
}

/// A number: what is before the point, the rest of it, and a unit.
fn parts(cell: &str) -> Option<[&str; 3]> {
    let end = cell.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '-').unwrap_or(cell.len());
    let (whole, rest) = cell.split_at(end);
    let digits = rest.strip_prefix('.').map_or(0, |rest| 1 + rest.chars().take_while(char::is_ascii_digit).count());
    let (fraction, unit) = rest.split_at(digits);
    let is_unit = unit.is_empty() || unit.strip_prefix(' ').is_some_and(|unit| !unit.contains([' ', '–']));
    (!whole.is_empty() && is_unit).then_some([whole, fraction, unit])
}

/// The cells with spaces behind, so that points and units are below each other when the cells end
/// at the right. A dash or nothing may stand for a number; a column with other cells stays.
fn align(cells: &[String]) -> Vec<String> {
    let is_none = |cell: &String| matches!(&**cell, "" | "–");
    let split: Vec<Option<[&str; 3]>> = cells.iter().map(|cell| parts(cell)).collect();
    if split.iter().zip(cells).any(|(parts, cell)| parts.is_none() && !is_none(cell)) {
        return cells.to_vec();
    }
    let most = |at: usize| split.iter().flatten().map(|parts| parts[at].chars().count()).max().unwrap_or_default();
    let (fraction, unit) = (most(1), most(2));
    let aligned = split.iter().zip(cells).map(|(parts, cell)| match parts {
        Some([whole, part, name]) => format!("{whole}{part:fraction$}{name:unit$}"),
        None => cell.clone(),
    });
    aligned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    fn table() -> Table {
        let columns =
            [text("level").key(), number("size"), number("expected false positives"), text("remarks").detail()];
        Table::new(
            columns,
            [row(&["0", "606.3 KiB", "0.82 %", "some words of some length"]), row(&["all", "12 B", "–", ""])],
        )
    }

    #[test]
    fn numbers_are_aligned_at_points_and_units() {
        let aligned = |cells: &[&str]| align(&row(cells));
        assert_eq!(aligned(&["606.3 KiB", "12 B", "–"]), ["606.3 KiB", "12   B  ", "–"]);
        assert_eq!(aligned(&["1.00", "15.5", "0.9928", "3"]), ["1.00  ", "15.5   ", "0.9928", "3     "]);
        assert_eq!(aligned(&["1,000", "7", ""]), ["1,000", "7", ""]);
        for cells in [["1.0 – 2.00", "1.5 – 2.5"], ["1.5 KiB (2 without)", "12 B"], ["yes", "1.5"]] {
            assert_eq!(aligned(&cells), cells);
        }
    }

    #[test]
    fn a_file_gets_all_columns_as_markdown() {
        let (lines, _) = table().lay_out(Layout::Markdown);
        assert_eq!(lines[0], "| level |      size | expected false positives | remarks                   |");
        assert_eq!(lines[3], "| all   |  12   B   |                        – |                           |");
        assert!(lines[1].starts_with("|-------|-----------|---"));
    }

    #[test]
    fn a_terminal_gets_what_fits() {
        for width in 20..120 {
            let (lines, _) = table().lay_out(Layout::Within(width));
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:#?}");
            assert!(lines.iter().any(|line| line.contains("all")), "{lines:#?}");
        }
        let heads = |width| table().lay_out(Layout::Within(width)).0;
        assert_eq!(heads(100)[0].split_whitespace().count(), 6);
        // Heads wrap before a column goes.
        assert!(heads(64)[0].contains("remarks") && heads(64)[1].contains("positives"), "{:#?}", heads(64));
        let narrow = heads(45);
        assert_eq!(narrow.last().unwrap(), "(no room for remarks; --format plain has all)");
        assert!(narrow[0].contains("size"), "{narrow:#?}");
        assert!(heads(20).join(" ").contains("(no room for expected false positives, remarks;"), "{:#?}", heads(20));
    }

    #[test]
    fn rows_become_blocks_where_no_row_fits() {
        let table = Table::new([text("first key").key(), text("last key").key()], [row(&["a", "b"]), row(&["c", "d"])]);
        let (lines, _) = table.lay_out(Layout::Within(10));
        assert_eq!(lines, ["first key  a", "last key   b", "", "first key  c", "last key   d"]);
    }

    #[test]
    fn a_report_gets_all_columns_and_nothing_unescaped() {
        let table = Table::new([text("key"), number("size")], [row(&["<script>", "12 B"])]);
        let html = table.markup().to_string().replace('\n', "");
        let heads = "<th class=\"text\" scope=\"col\">key</th><th class=\"number\" scope=\"col\">size</th>";
        assert!(html.contains(heads), "{html}");
        let cells = "<th class=\"text\" scope=\"row\">&lt;script&gt;</th><td class=\"number\">12 B</td>";
        assert!(html.contains(cells), "{html}");
    }

    #[test]
    fn the_plain_form_has_a_line_for_each_row() {
        let (lines, heads) = table().lay_out(Layout::Plain);
        assert_eq!(heads, 1);
        assert_eq!(lines[0], "level\tsize\texpected false positives\tremarks");
        assert_eq!(lines[1], "0\t606.3 KiB\t0.82 %\tsome words of some length");
        assert_eq!(lines.len(), 3);
        let (lines, _) = Table::new([text("key")], [row(&["a\tb\nc"])]).lay_out(Layout::Plain);
        assert_eq!(lines[1], "a b c");
    }
}
