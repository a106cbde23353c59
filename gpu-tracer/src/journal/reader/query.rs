//! SQL of the user's own, which can only read.

use rusqlite::types::ValueRef;

use super::Reader;
use crate::journal::JournalError;

/// Rows of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Values, as JSON has them.
    pub rows: Vec<Vec<serde_json::Value>>,
}

impl Reader {
    /// Runs one statement.
    ///
    /// # Errors
    /// It is no statement, writes, or fails.
    pub fn sql(&self, query: &str) -> Result<Reading, JournalError> {
        let mut statement = self.db.prepare(query)?;
        if !statement.readonly() {
            let denied = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
            let why = "this only reads: SELECT, WITH, EXPLAIN and PRAGMA without a value".to_owned();
            return Err(rusqlite::Error::SqliteFailure(denied, Some(why)).into());
        }
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let width = columns.len();
        let mut reading = Reading { columns, rows: Vec::new() };
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..width).map(|at| row.get_ref(at).map(value));
            reading.rows.push(values.collect::<rusqlite::Result<_>>()?);
        }
        Ok(reading)
    }
}

fn value(value: ValueRef<'_>) -> serde_json::Value {
    match value {
        ValueRef::Null => serde_json::Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned().into(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
    }
}
