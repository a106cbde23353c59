//! Reading a journal: of this host while the daemon writes it, or a copied file on another machine. Never writes.

mod coverage;
mod document;
mod events;
mod holdings;
mod incident;
mod naming;
mod query;
mod story;
mod time;
mod verdicts;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags};

use super::{JournalError, schema};
use crate::diagnose::Roles;
use crate::gpu::selector::{self, Selection, SelectorError};
use crate::model::device::{DeviceRange, Naming};
use crate::model::history::{Coverage, Holding, Unheld, VerdictSpan};
use crate::model::{DeviceNumber, DeviceTable, Gpu};

pub use document::Asked;
pub use events::Event;
pub use naming::Process;
pub use query::Reading;
pub use story::Story;
pub use time::{TimeError, parse_time};

use naming::Names;

/// A boot and when there was a daemon in it.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    pub(super) id: i64,
    pub(super) boot_id: String,
    wall_offset_ns: i64,
    kernel: Option<String>,
    host: Option<String>,
    /// (first look, last sign of life), in order.
    runs: Vec<(i64, i64)>,
}

/// A moment of the record: a boot and ns of its boot time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Row of the boot.
    pub(super) boot: i64,
    /// ns of boot time.
    pub(super) ns: i64,
}

/// A stretch of wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From here on.
    pub from: Timestamp,
    /// Until here.
    pub to: Timestamp,
}

/// Who held what at one moment.
#[derive(Clone, Debug)]
pub struct At {
    /// What was asked for.
    pub asked: Timestamp,
    /// What is answered: the last moment before it that is known, if it is in a hole.
    pub answered: Option<Timestamp>,
    /// What was held then.
    pub holdings: Vec<Holding>,
    /// What was open then and held by nobody who is known.
    pub unheld: Vec<Unheld>,
    /// What had been said of GPUs last.
    pub verdicts: Vec<VerdictSpan>,
    /// Holes around it.
    pub coverage: Coverage,
}

/// An open journal.
pub struct Reader {
    db: Connection,
    /// Of its layout.
    version: i64,
    roles: Roles,
    boots: Vec<Boot>,
    names: Names,
}

impl Boot {
    /// The wall clock at a boot time, by the newest setting of the clock in this boot.
    pub(super) fn wall(&self, ns: i64) -> Timestamp {
        Timestamp::from_nanosecond(i128::from(self.wall_offset_ns) + i128::from(ns)).unwrap_or(Timestamp::MAX)
    }

    fn ns(&self, wall: Timestamp) -> i64 {
        let ns = wall.as_nanosecond() - i128::from(self.wall_offset_ns);
        i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
    }

    fn begin(&self) -> Option<Timestamp> {
        self.runs.first().map(|(first, _)| self.wall(*first))
    }

    fn end(&self) -> Option<Timestamp> {
        self.runs.iter().map(|(_, last)| *last).max().map(|last| self.wall(last))
    }
}

impl Reader {
    /// Opens a journal to read it.
    ///
    /// # Errors
    /// There is none, it is of a newer version or of another program, or cannot be read.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(JournalError::Missing(path.to_owned()));
            }
            Err(source) => return Err(JournalError::File { path: path.to_owned(), source }),
            Ok(_) => {}
        }
        let db = connect(path)?;
        // One answer is about one state of it, whatever is written meanwhile.
        db.execute_batch("BEGIN")?;
        // Only a writer may migrate. What an older version does not have has not been recorded.
        let version = schema::check(&db)?;
        if version == 0 {
            return Err(JournalError::Empty);
        }
        let boots = boots(&db)?;
        if boots.iter().all(|boot| boot.runs.is_empty()) {
            return Err(JournalError::Empty);
        }
        Ok(Self { db, version, roles: Roles::default(), boots, names: Names::default() })
    }

    /// The same, with what a site says of its programs.
    #[must_use]
    pub fn with_roles(self, roles: Roles) -> Self {
        Self { roles, ..self }
    }

    /// The end of the record: its last sign of life.
    #[must_use]
    pub fn end(&self) -> Timestamp {
        self.boots.iter().filter_map(Boot::end).max().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// The beginning of the record.
    #[must_use]
    pub fn begin(&self) -> Timestamp {
        self.boots.iter().filter_map(Boot::begin).min().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// What is known of the host, newest boot first: (host, kernel, boot id, beginning of its record).
    #[must_use]
    pub fn hosts(&self) -> Vec<(String, String, String, Timestamp)> {
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
        let boots = self.boots.iter().rev();
        boots
            .filter_map(|boot| {
                Some((known(&boot.host), known(&boot.kernel), boot.boot_id.clone(), boot.begin()?))
            })
            .collect()
    }

    pub(super) fn boot(&self, id: i64) -> Option<&Boot> {
        self.boots.iter().find(|boot| boot.id == id)
    }

    /// The parts of a window, by boot, in order: (boot, from, to), ns of boot time.
    fn parts(&self, window: Window) -> Vec<(i64, i64, i64)> {
        let mut parts = Vec::new();
        for boot in &self.boots {
            let Some(last) = boot.runs.iter().map(|run| run.1).max() else { continue };
            // What a daemon finds began before it did.
            let from = boot.ns(window.from).max(0);
            let to = boot.ns(window.to).min(last);
            if from <= to {
                parts.push((boot.id, from, to));
            }
        }
        parts
    }

    /// GPUs of the newest boot that has any.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn gpus(&self) -> Result<Vec<Gpu>, JournalError> {
        let mut select = self.db.prepare(
            "SELECT gpu, minor, uuid, bus_id, name FROM gpu WHERE boot = (SELECT max(boot) FROM gpu) ORDER BY gpu",
        )?;
        let rows = select.query_map([], |row| {
            Ok(Gpu {
                index: row.get(0)?,
                minor: row.get(1)?,
                uuid: row.get(2)?,
                bus_id: row.get(3)?,
                name: row.get(4)?,
            })
        })?;
        let mut gpus: Vec<Gpu> = rows.collect::<rusqlite::Result<_>>()?;
        for (_, _, index) in self.devices()? {
            if let Some(index) = index.filter(|index| gpus.iter().all(|gpu| gpu.index != *index)) {
                gpus.push(Gpu { index, ..Gpu::default() });
            }
        }
        gpus.sort_by_key(|gpu| gpu.index);
        Ok(gpus)
    }

    fn devices(&self) -> Result<Vec<(DeviceNumber, String, Option<u32>)>, JournalError> {
        let mut select = self.db.prepare("SELECT number, name, gpu FROM device ORDER BY boot DESC, id")?;
        let rows = select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?, row.get(2)?)))?;
        let mut devices: Vec<(DeviceNumber, String, Option<u32>)> = Vec::new();
        for row in rows {
            let (number, name, gpu) = row?;
            let parts = number.split_once(':').and_then(|(major, minor)| {
                Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
            });
            if let Some(number) = parts.filter(|number| devices.iter().all(|(known, ..)| known != number)) {
                devices.push((number, name, gpu));
            }
        }
        Ok(devices)
    }

    /// What selectors mean on the host that this is the journal of.
    ///
    /// # Errors
    /// The journal cannot be read; the inner result: they select nothing.
    pub fn select(&self, selectors: &[String]) -> Result<Result<Selection, SelectorError>, JournalError> {
        let mut table = DeviceTable::default();
        for (number, name, gpu) in self.devices()? {
            let DeviceNumber { major, minor } = number;
            table.ranges.push(DeviceRange { major, first: minor, last: minor, naming: Naming::Fixed(name) });
            table.gpu_nodes.extend(gpu.map(|gpu| (number, gpu)));
        }
        Ok(selector::resolve(selectors, &self.gpus()?, &table))
    }
}

/// Read-only. A copy without its log, perhaps on a medium that cannot be written to, is read as it is.
fn connect(path: &Path) -> Result<Connection, JournalError> {
    let plain = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let has_log = std::fs::metadata(PathBuf::from(log)).is_ok_and(|log| log.len() > 0);
    let usable = |db: &Connection| {
        db.busy_timeout(std::time::Duration::from_secs(2))?;
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))
    };
    let opened = Connection::open_with_flags(path, plain).and_then(|db| usable(&db).map(|_| db));
    match opened {
        Err(error) if !has_log => {
            let uri = format!("file:{}?immutable=1", percent(path));
            let flags = plain | OpenFlags::SQLITE_OPEN_URI;
            let db = Connection::open_with_flags(uri, flags).map_err(|_| error)?;
            usable(&db)?;
            Ok(db)
        }
        opened => Ok(opened?),
    }
}

fn percent(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let bytes = path.as_os_str().as_bytes().iter();
    bytes
        .map(|byte| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02x}") })
        .collect()
}

fn boots(db: &Connection) -> Result<Vec<Boot>, JournalError> {
    let mut select = db.prepare("SELECT id, boot_id, wall_offset_ns, kernel, host FROM boot ORDER BY id")?;
    let rows = select.query_map([], |row| {
        Ok(Boot {
            id: row.get(0)?,
            boot_id: row.get(1)?,
            wall_offset_ns: row.get(2)?,
            kernel: row.get(3)?,
            host: row.get(4)?,
            runs: Vec::new(),
        })
    })?;
    let mut boots: Vec<Boot> = rows.collect::<rusqlite::Result<_>>()?;
    let mut select = db.prepare("SELECT boot, started_ns, alive_ns FROM run ORDER BY id")?;
    let rows = select.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?)))?;
    for row in rows {
        let (boot, started_ns, alive_ns) = row?;
        if let Some(boot) = boots.iter_mut().find(|known| known.id == boot) {
            boot.runs.push((started_ns, alive_ns));
        }
    }
    Ok(boots)
}
