//! Aligned columns that adapt to a width.
//!
//! Where a table is wider than the terminal, whole columns move, one after another, from the row to lines of their own below it.
//! Nothing vanishes. Only a free text in the last column is cut off, with an ellipsis, and only on a terminal.

use super::View;
use super::text::{columns, fit, wrap};

/// Spaces between two columns.
const GAP: usize = 2;
/// Where the lines below a row begin.
const INDENT: usize = 4;
/// Columns for the label of such a line.
const LABEL: usize = 9;
/// The least that a stretching column is worth having in the row for.
const STRETCH_MIN: usize = 28;
/// Lines that a free text below a row may take on a terminal.
const FREE_LINES: usize = 3;

/// What a text says at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Strong,
    Good,
    Warn,
    Bad,
}

impl Tone {
    /// The text in this tone, or as it is where colours are not wanted.
    pub(super) fn paint(self, text: &str, color: bool) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            _ if !color || text.is_empty() => return text.to_owned(),
            Self::Strong => "1",
            Self::Good => "32",
            Self::Warn => "33",
            Self::Bad => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Name of the line below the row, where the column does not fit into it.
    pub(super) label: &'static str,
    pub(super) place: Place,
    /// Longer cells are cut off in the row on a terminal, and repeated in full below.
    pub(super) cap: usize,
    pub(super) right: bool,
    /// Holds text that a process may have made as long as it liked.
    pub(super) free: bool,
}

/// Whether a column leaves the row when space is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It stays.
    Fixed,
    /// It leaves; the highest number goes first.
    Movable(u8),
    /// It leaves and shares one line with others of its kind.
    Short(u8),
    /// The last column, which takes what is left and is cut off there; leaves when that is too little.
    Stretch(u8),
    /// The last column, which takes what is left and goes on in lines below; leaves when that is too little.
    Flow(u8),
}

impl Place {
    fn rank(self) -> Option<u8> {
        match self {
            Self::Fixed => None,
            Self::Movable(rank) | Self::Short(rank) | Self::Stretch(rank) | Self::Flow(rank) => Some(rank),
        }
    }

    fn takes_the_rest(self) -> bool {
        matches!(self, Self::Stretch(_) | Self::Flow(_))
    }
}

/// One cell: escaped text and its tone.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) tone: Tone,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, tone: Tone::Plain }
    }
}

/// A line below a row.
#[derive(Clone, Debug)]
pub(super) struct Detail {
    pub(super) label: &'static str,
    /// Escaped.
    pub(super) text: String,
    pub(super) tone: Tone,
    /// Cut off after a few lines on a terminal.
    pub(super) free: bool,
}

impl Detail {
    pub(super) fn new(label: &'static str, text: String) -> Self {
        Self { label, text, tone: Tone::Plain, free: false }
    }
}

/// One row; as many cells as there are columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    pub(super) details: Vec<Detail>,
}

/// The table, a line feed after each line. Columns with nothing in them are left out.
pub(super) fn lay_out(all: &[Column], rows: &[Row], view: &View<'_>) -> String {
    let layout = Layout::new(all, rows, view.width);
    let mut out = String::new();
    let titles =
        all.iter().map(|column| Cell { text: column.title.to_owned(), tone: Tone::Strong }).collect();
    layout.push_row(&mut out, &Row { cells: titles, details: Vec::new() }, view.color);
    for row in rows {
        layout.push_row(&mut out, row, view.color);
        for detail in layout.moved(row).iter().chain(&row.details) {
            push_detail(&mut out, detail, view);
        }
    }
    out
}

struct Layout<'a> {
    all: &'a [Column],
    /// Width of each column; `None` where it is not in the row.
    widths: Vec<Option<usize>>,
    limit: Option<usize>,
}

impl<'a> Layout<'a> {
    fn new(all: &'a [Column], rows: &[Row], limit: Option<usize>) -> Self {
        let natural = |at: usize| {
            let widest = rows
                .iter()
                .filter_map(|row| row.cells.get(at))
                .map(|cell| columns(&cell.text))
                .max()
                .unwrap_or(0);
            (widest > 0).then(|| widest.min(all[at].cap).max(columns(all[at].title)))
        };
        let mut widths: Vec<Option<usize>> = (0..all.len()).map(natural).collect();
        if let Some(limit) = limit {
            while Self::least(all, &widths) > limit {
                let movable = (0..all.len()).filter(|at| widths[*at].is_some());
                let Some((_, next)) = movable.filter_map(|at| Some((all[at].place.rank()?, at))).max() else {
                    break;
                };
                widths[next] = None;
            }
            for (at, column) in all.iter().enumerate() {
                if let (true, Some(width)) = (column.place.takes_the_rest(), widths[at]) {
                    let others = Self::least(all, &widths) - width.min(STRETCH_MIN);
                    widths[at] = Some(limit - others);
                }
            }
        }
        Self { all, widths, limit }
    }

    /// The least width of a row.
    fn least(all: &[Column], widths: &[Option<usize>]) -> usize {
        let shown: Vec<usize> = all
            .iter()
            .zip(widths)
            .filter_map(|(column, width)| {
                let stretches = column.place.takes_the_rest();
                width.map(|width| if stretches { width.min(STRETCH_MIN) } else { width })
            })
            .collect();
        shown.iter().sum::<usize>() + GAP * shown.len().saturating_sub(1)
    }

    fn push_row(&self, out: &mut String, row: &Row, color: bool) {
        let mut line = String::new();
        let mut pending = 0; // spaces that are written only when something follows
        let mut left = self.limit;
        let mut below = Vec::new();
        for ((column, width), cell) in self.all.iter().zip(&self.widths).zip(&row.cells) {
            let Some(width) = *width else { continue };
            let text = match (left, column.place) {
                (None, _) => cell.text.clone(),
                (Some(_), Place::Flow(_)) => {
                    let mut lines = wrap(&cell.text, width);
                    below = lines.split_off(1);
                    lines.remove(0)
                }
                (Some(left), _) => fit(&cell.text, width.min(left.saturating_sub(pending))),
            };
            let padding = width.saturating_sub(columns(&text));
            let room = left.map_or(padding, |left| left.saturating_sub(pending + columns(&text)));
            let (before, after) = if column.right { (padding.min(room), 0) } else { (0, padding) };
            if !text.is_empty() {
                let taken = pending + before + columns(&text);
                left = left.map(|left| left.saturating_sub(taken));
                line.extend(std::iter::repeat_n(' ', pending + before));
                line.push_str(&cell.tone.paint(&text, color));
                pending = 0;
            } else {
                pending += before;
            }
            pending += after + GAP;
        }
        out.push_str(&line);
        out.push('\n');
        let start = self.widths.iter().rev().skip(1).flatten().map(|width| width + GAP).sum();
        for line in below {
            out.extend(std::iter::repeat_n(' ', start));
            out.push_str(&line);
            out.push('\n');
        }
    }

    /// What does not stand in the row, or not in full.
    fn moved(&self, row: &Row) -> Vec<Detail> {
        let mut moved = Vec::new();
        let mut short = Vec::new();
        for ((column, width), cell) in self.all.iter().zip(&self.widths).zip(&row.cells) {
            if cell.text.is_empty() {
                continue;
            }
            let stretches = column.place.takes_the_rest();
            let cut = !stretches && self.limit.is_some() && columns(&cell.text) > column.cap;
            if width.is_some() && !cut {
                continue;
            }
            if let (Place::Short(_), false) = (column.place, cut) {
                short.push(format!("{} {}", column.label, cell.text));
                continue;
            }
            let detail =
                Detail { label: column.label, text: cell.text.clone(), tone: cell.tone, free: column.free };
            if stretches { moved.insert(0, detail) } else { moved.push(detail) }
        }
        if !short.is_empty() {
            moved.push(Detail::new("more", short.join(", ")));
        }
        moved
    }
}

fn push_detail(out: &mut String, detail: &Detail, view: &View<'_>) {
    let label = format!("{:INDENT$}{:<LABEL$}", "", detail.label);
    let lines = match view.width {
        None => vec![detail.text.trim_end().to_owned()],
        // Too narrow for labels beside the text: the text is cut, the screen is not left.
        Some(width) => {
            let room = width.saturating_sub(INDENT + LABEL).max(2);
            if detail.free {
                wrap(&fit(&detail.text, room * FREE_LINES), room)
            } else {
                wrap(&detail.text, room)
            }
        }
    };
    for (at, line) in lines.iter().enumerate() {
        let label = if at == 0 { label.clone() } else { " ".repeat(INDENT + LABEL) };
        let label =
            view.width.map_or(label.clone(), |width| fit(&label, width.saturating_sub(columns(line))));
        out.push_str(if line.is_empty() { label.trim_end() } else { &label });
        out.push_str(&detail.tone.paint(line, view.color));
        out.push('\n');
    }
}
