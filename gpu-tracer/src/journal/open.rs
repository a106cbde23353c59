//! Opening the journal for writing: made if there is none, moved aside if it is broken, left alone if it is newer.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use super::health::{Shared, State};
use super::queue::Queue;
use super::recorder::Recorder;
use super::retention::Retention;
use super::standing::{boot_row, end_what_was_left, left_open};
use super::store::Store;
use super::writer::Writer;
use super::{JournalError, schema};

/// Its name in the state directory.
pub const NAME: &str = "journal.db";
/// What a look for broken pages may take at the start; the rest is found when it is read.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// What a journal is opened with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory it is in.
    pub directory: PathBuf,
    /// How much of it is kept.
    pub retention: Retention,
    /// Identity of this boot.
    pub boot_id: String,
    /// ns of boot time.
    pub now_ns: u64,
    /// Wall clock at boot, ns since 1970.
    pub wall_offset_ns: i64,
    /// The plan of the daemon.
    pub plan: String,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Name of the host.
    pub host: Option<String>,
    /// Between attempts to write again after it could not be written.
    pub retry: Duration,
}

impl Options {
    /// For a boot, with what is usual otherwise.
    #[must_use]
    pub fn new(directory: &Path, boot_id: &str, now_ns: u64, wall_offset_ns: i64) -> Self {
        Self {
            directory: directory.to_owned(),
            retention: Retention::default(),
            boot_id: boot_id.to_owned(),
            now_ns,
            wall_offset_ns,
            plan: "lean".to_owned(),
            kernel: None,
            host: None,
            retry: Duration::from_secs(5),
        }
    }
}

/// A journal that is being written.
pub struct Opened {
    /// To tell it.
    pub recorder: Recorder,
    /// The last id of a file in it.
    pub last_file: u64,
    /// Files of this boot that had no end when it was opened: they may be open still.
    pub left: HashSet<u64>,
}

/// Opens it and starts the writer. Where the disk does not allow that now, the writer goes on trying.
///
/// # Errors
/// It is of a newer version, or of another program: it will not become right by waiting.
pub fn open(options: Options) -> Result<Opened, JournalError> {
    let health = Shared::default();
    health.change(|health| health.path = options.directory.join(NAME).display().to_string());
    let mut database = match Database::open(&options, &health) {
        Ok(database) => Some(database),
        Err(error @ (JournalError::Newer { .. } | JournalError::Foreign)) => return Err(error),
        Err(error) => {
            health.change(|health| {
                (health.state, health.problem) = (State::Halted, Some(error.to_string()));
            });
            None
        }
    };
    let last_file = database.as_ref().map_or(0, |database| database.last_file);
    let left = database.as_mut().map(|database| std::mem::take(&mut database.left)).unwrap_or_default();
    let (queue, wanted) = (Queue::default(), Arc::new(AtomicBool::new(false)));
    let now_ns = options.now_ns;
    let writer = Writer::new(options, queue.clone(), health.clone(), Arc::clone(&wanted), database);
    let thread = std::thread::Builder::new()
        .name("journal".to_owned())
        .spawn(move || writer.run())
        .map_err(|source| JournalError::File { path: NAME.into(), source })?;
    Ok(Opened { recorder: Recorder::new(queue, health, wanted, thread, now_ns), last_file, left })
}

/// The file, and what is known of what is in it.
pub(super) struct Database {
    pub(super) db: Connection,
    pub(super) store: Store,
    last_file: u64,
    left: HashSet<u64>,
}

impl Database {
    /// Opens it for a daemon that begins now. A broken one is moved aside and a new one begun.
    pub(super) fn open(options: &Options, health: &Shared) -> Result<Self, JournalError> {
        let path = options.directory.join(NAME);
        let opened = match Self::connect(options, &path) {
            Err(error) if error.is_corrupt() => {
                let aside = move_aside(&path)?;
                health.change(|health| health.moved_aside = Some(aside.display().to_string()));
                Self::connect(options, &path)
            }
            opened => opened,
        };
        if opened.is_ok() {
            health.change(|health| (health.state, health.problem) = (State::Writing, None));
        }
        opened
    }

    fn connect(options: &Options, path: &Path) -> Result<Self, JournalError> {
        // With a mode of our own, and through no symbolic link.
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .map_err(|source| JournalError::File { path: path.to_owned(), source })?;
        let mut db = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        // Before anything is written: a newer journal is left as it is.
        schema::check(&db)?;
        db.busy_timeout(Duration::from_secs(1))?;
        schema::migrate(&mut db)?;
        for (name, value) in [
            ("synchronous", "FULL"),
            ("foreign_keys", "OFF"),
            ("cache_size", "-4096"),
            ("temp_store", "MEMORY"),
            ("journal_size_limit", "16777216"),
        ] {
            db.pragma_update(None, name, value)?;
        }
        db.set_prepared_statement_cache_capacity(64);
        if !ended_well(&db)? {
            look_for_broken_pages(&mut db)?;
        }
        let transaction = db.transaction()?;
        let left = left_open(&transaction, &options.boot_id)?;
        end_what_was_left(&transaction)?;
        let boot = boot_row(
            &transaction,
            &options.boot_id,
            options.wall_offset_ns,
            options.kernel.as_deref(),
            options.host.as_deref(),
        )?;
        let now_ns = super::ids::ns(options.now_ns);
        transaction.execute(
            "INSERT INTO run (boot, started_ns, alive_ns, version, plan) VALUES (?1, ?2, ?2, ?3, ?4)",
            (boot, now_ns, env!("CARGO_PKG_VERSION"), &options.plan),
        )?;
        let run = transaction.last_insert_rowid();
        let last_file: i64 =
            transaction.query_row("SELECT coalesce(max(id), 0) FROM file", [], |row| row.get(0))?;
        transaction.commit()?;
        Ok(Self { db, store: Store::new(boot, run), last_file: last_file.unsigned_abs(), left })
    }

    /// Files that the core numbers from the beginning get numbers after those that are there.
    pub(super) fn continue_files(&mut self) {
        self.store.base = self.last_file;
    }
}

fn ended_well(db: &Connection) -> rusqlite::Result<bool> {
    let last =
        db.query_row("SELECT stopped FROM run ORDER BY id DESC LIMIT 1", [], |row| row.get(0)).optional();
    Ok(last?.unwrap_or(true))
}

fn look_for_broken_pages(db: &mut Connection) -> Result<(), JournalError> {
    let end = Instant::now() + CHECK_TIME;
    db.progress_handler(10_000, Some(move || Instant::now() >= end))?;
    let found: rusqlite::Result<String> = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    db.progress_handler(0, None::<fn() -> bool>)?;
    match found {
        Ok(answer) if answer == "ok" => Ok(()),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(answer) => {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            Err(rusqlite::Error::SqliteFailure(code, Some(answer)).into())
        }
    }
}

/// Renames a broken journal so that nothing of it is lost; gives its new name.
pub(super) fn move_aside(path: &Path) -> Result<PathBuf, JournalError> {
    let with = |suffix: &str| {
        let mut name = OsString::from(path);
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = (0..1000)
        .map(|n| with(&format!(".broken-{n}")))
        .find(|name| !name.exists())
        .unwrap_or_else(|| with(".broken"));
    let rename = |from: &Path, to: &Path| match fs::rename(from, to) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| JournalError::File { path: from.to_owned(), source }),
    };
    rename(path, &aside)?;
    for suffix in ["-wal", "-shm"] {
        let mut to = OsString::from(&aside);
        to.push(suffix);
        rename(&with(suffix), Path::new(&to))?;
    }
    Ok(aside)
}
