//! Output formats. Every string that came from a process is escaped here ([`text`]), and nothing is printed without it.
//!
//! Pure: a report goes in, text comes out. What standard output is (how wide, coloured or not) and the names of users are told
//! by the caller in a [`View`].

pub mod csv;
pub mod doctor;
pub mod history;
pub mod json;
pub mod page;
pub mod perfetto;
pub mod rows;
pub mod table;
pub mod text;
pub mod watch;
pub mod why;

mod columns;
mod folding;
mod memory;
mod ranges;

use std::io;
use std::str::FromStr;

use thiserror::Error;

use crate::model::ExitStatus;
use crate::model::report::Report;

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people: [`table`].
    #[default]
    Table,
    /// For programs: [`json`].
    Json,
    /// For spreadsheets: [`csv`], with or without the line of column names.
    Csv {
        /// Begin with the names of the columns?
        header: bool,
    },
}

impl Format {
    /// What `--format` takes.
    pub const NAMES: [&str; 4] = ["table", "json", "csv", "csv,noheader"];
}

/// No such format.
#[derive(Debug, Error)]
#[error("`{}` is no format: use table, json, csv or csv,noheader", text::escape_str(.0))]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "table" => Ok(Self::Table),
            "json" => Ok(Self::Json),
            "csv" => Ok(Self::Csv { header: true }),
            "csv,noheader" => Ok(Self::Csv { header: false }),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

/// What the table is printed on, and for whom.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Columns of the terminal; `None` where lines may be as long as they are (pipes and files).
    pub width: Option<usize>,
    /// May colours be used?
    pub color: bool,
    /// A row for each holder instead of one for many that are alike.
    pub expand: bool,
    /// The name of a user id; a user without one is shown by number.
    pub user: &'a dyn Fn(u32) -> Option<String>,
}

/// Writes who holds what.
///
/// # Errors
/// What `out` says.
pub fn holders(report: &Report, format: Format, view: &View<'_>, out: &mut dyn io::Write) -> io::Result<()> {
    match format {
        Format::Table => out.write_all(table::holders(report, view).as_bytes()),
        Format::Json => json::write(report, out),
        Format::Csv { header } => csv::write(report, header, out),
    }
}

/// What `gpu-tracer holders` tells its caller.
///
/// Held is certain however much could not be seen: a holder, or an open file that nobody we can name refers to, is
/// [`ExitStatus::Held`]. Only an empty answer needs a complete look: without it the status is [`ExitStatus::Unknown`].
#[must_use]
pub fn exit_status(report: &Report) -> ExitStatus {
    if !report.holders.is_empty() || !report.files.is_empty() {
        ExitStatus::Held
    } else if is_complete(report) {
        ExitStatus::Free
    } else {
        ExitStatus::Unknown
    }
}

/// Was everything looked at and everything found explained?
fn is_complete(report: &Report) -> bool {
    let explained = report.files.iter().all(|file| file.unexplained == 0);
    report.coverage.complete && report.coverage.missing.is_empty() && explained
}

#[cfg(test)]
pub(crate) mod tests;
