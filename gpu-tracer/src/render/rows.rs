//! Rows of any kind, as an answer to SQL has them.

use std::io;

use serde_json::Value;

use super::Format;
use super::csv::field;
use super::text::{columns, escape_str, fit};

/// Writes them; a table on a terminal is cut at its width.
///
/// # Errors
/// What `out` says.
pub fn write(
    titles: &[String],
    rows: &[Vec<Value>],
    format: Format,
    width: Option<usize>,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    match format {
        Format::Json => {
            let object = |row: &Vec<Value>| -> serde_json::Map<String, Value> {
                titles.iter().cloned().zip(row.iter().cloned()).collect()
            };
            super::json::write(&rows.iter().map(object).collect::<Vec<_>>(), out)
        }
        Format::Csv { header } => {
            let line = |cells: Vec<String>| cells.join(",");
            if header {
                writeln!(out, "{}", line(titles.iter().map(|title| field(title.as_bytes())).collect()))?;
            }
            for row in rows {
                let cell = |value: &Value| match value {
                    Value::String(text) => field(text.as_bytes()),
                    other => plain(other),
                };
                writeln!(out, "{}", line(row.iter().map(cell).collect()))?;
            }
            Ok(())
        }
        Format::Table => table(titles, rows, width, out),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escape_str(text),
        other => other.to_string(),
    }
}

fn table(
    titles: &[String],
    rows: &[Vec<Value>],
    width: Option<usize>,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let titles: Vec<String> = titles.iter().map(|title| escape_str(title)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(plain).collect()).collect();
    let widest = |at: usize| {
        let cells = rows.iter().chain([&titles]).filter_map(|row| row.get(at));
        cells.map(|cell| columns(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(widest).collect();
    for row in [&titles].into_iter().chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(columns(cell)) + 2));
        }
        let line = line.trim_end();
        writeln!(out, "{}", width.map_or_else(|| line.to_owned(), |width| fit(line, width)))?;
    }
    Ok(())
}
