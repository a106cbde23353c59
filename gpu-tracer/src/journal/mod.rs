//! The journal: what happened and who held what when, in a SQLite file that outlives the daemon and the boot.
//!
//! ```text
//! core ──records──▶ Recorder ──bounded queue──▶ writer thread ──▶ journal.db ◀── Reader (history, report)
//! ```
//!
//! * **Nobody waits for the disk.** The core puts records into a queue. Where that is full they are dropped, counted, and
//!   become one gap; the next look then tells the journal all that is held ([`record::Standing`]), so that no interval stays
//!   wrong.
//! * **Group commit.** The writer commits what has gathered after a second, or 1,024 records; with more, what has come
//!   meanwhile goes into the same transaction. A commit is on the disk when it returns (WAL, `synchronous = FULL`).
//! * **Boot time.** Events are ordered by boot and boot time; the wall clock is an offset of the boot. Setting the clock
//!   moves the times that are shown, never the order.
//! * **Intervals.** A holding and the life of an open file are rows with a beginning and an end. What has no end is held
//!   as long as its daemon is known to have lived. A search by time uses the levels of [`schema`].
//! * **Trouble stops the history and not the daemon.** A full disk: records are dropped until it can be written again,
//!   which is a gap. A broken file is moved aside. A file of a newer version is left alone.

mod detail;
mod health;
mod ids;
mod open;
mod queue;
mod reader;
mod record;
mod recorder;
mod retention;
mod schema;
mod standing;
mod store;
mod verdicts;
mod writer;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use self::health::{Health, State};
pub use self::open::{NAME, Opened, Options, open};
pub use self::reader::{
    Asked, At, Event, Moment, Process, Reader, Reading, Story, TimeError, Window, parse_time,
};
pub use self::record::{GivenVerdict, Lost, ProcessRecord, Record, Standing, StandingFile, StandingHolding};
pub use self::recorder::Recorder;
pub use self::retention::Retention;
pub use self::schema::VERSION;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is none.
    #[error("there is no journal at {}; `gpu-tracer run` writes one, --journal PATH reads one from elsewhere", .0.display())]
    Missing(PathBuf),
    /// A later version of this program has written it.
    #[error(
        "the journal has version {found} and this gpu-tracer knows versions up to {known}; use the gpu-tracer that wrote it, \
         or a newer one. It has not been touched"
    )]
    Newer {
        /// Its version.
        found: i64,
        /// The newest that is known.
        known: i64,
    },
    /// It is a database of another program.
    #[error("this is a database, but no journal of gpu-tracer")]
    Foreign,
    /// It has been written by no daemon yet.
    #[error("the journal is empty: no daemon has written to it yet")]
    Empty,
    /// The database refuses.
    #[error("the journal: {0}")]
    Database(#[from] rusqlite::Error),
    /// The file system refuses.
    #[error("{}: {source}{}", path.display(), hint(source))]
    File {
        /// What was to be used.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl JournalError {
    /// Is the content of the file broken, so that no retry helps?
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        matches!(self, Self::Database(error)
            if matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase)))
    }
}

/// What to do about it.
fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => "; run as root, or copy the journal and use --journal",
        _ => "",
    }
}
