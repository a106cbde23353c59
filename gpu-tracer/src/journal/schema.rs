//! The layout of the database, its version, and how an older one becomes the current one.
//!
//! `PRAGMA application_id` says that it is a journal of ours, `PRAGMA user_version` which layout it has. A migration is a
//! step from one version to the next, in one transaction. A layout that is newer than this program is never written to.

use rusqlite::{Connection, TransactionBehavior};

use super::JournalError;

/// `gput`, so that `file(1)` and this program know what it is.
const APPLICATION_ID: i64 = 0x6770_7574;
/// The layout that this program writes.
pub const VERSION: i64 = 2;
/// Step N makes version N + 1 out of version N; the first makes everything out of nothing.
const STEPS: [&str; VERSION as usize] = [include_str!("schema.sql"), include_str!("schema-2.sql")];

/// What happened, by number. Numbers are in files: words may be added at the end, never moved.
pub(super) const WORDS: [&str; 29] = [
    "opened",
    "opening",
    "open-failed",
    "found",
    "inherited",
    "handed-over",
    "mapped",
    "unmapped",
    "descriptors-closed",
    "queued",
    "registered",
    "pinned",
    "closed",
    "renamed",
    "execed",
    "reparented",
    "signalled",
    "killed",
    "exiting",
    "exited",
    "detached",
    "unreferenced",
    "releasing",
    "deferred",
    "released",
    "gap",
    "module-loaded",
    "module-unloaded",
    "clock-set",
];

/// The number of a word, from 1; `None` for a word that no version knows.
pub(super) fn word_number(word: &str) -> Option<i64> {
    let at = WORDS.iter().position(|known| *known == word)?;
    i64::try_from(at + 1).ok()
}

/// Is this database ours, or empty? Errors: it is something else, or of a version that is not known yet.
pub(super) fn check(connection: &Connection) -> Result<i64, JournalError> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let (application, version) = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    match (application, version) {
        (0, 0) if tables == 0 => Ok(0),
        (APPLICATION_ID, version) if version > VERSION => {
            Err(JournalError::Newer { found: version, known: VERSION })
        }
        (APPLICATION_ID, version) if version >= 0 => Ok(version),
        _ => Err(JournalError::Foreign),
    }
}

/// Brings the database to [`VERSION`]. Errors: as for [`check`], or it cannot be written.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), JournalError> {
    let version = check(connection)?;
    if version == 0 {
        // Both only take effect before the first table; space of what was deleted can then be given back bit by bit.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
    }
    let done = usize::try_from(version).unwrap_or(STEPS.len());
    for (step, sql) in STEPS.iter().enumerate().skip(done) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", step as i64 + 1)?;
        transaction.commit()?;
    }
    add_words(connection)
}

fn add_words(connection: &Connection) -> Result<(), JournalError> {
    let known: i64 = connection.query_row("SELECT count(*) FROM word", [], |row| row.get(0))?;
    if usize::try_from(known).is_ok_and(|known| known >= WORDS.len()) {
        return Ok(());
    }
    let mut add = connection.prepare("INSERT OR IGNORE INTO word (id, word) VALUES (?1, ?2)")?;
    for word in WORDS {
        add.execute((word_number(word), word))?;
    }
    Ok(())
}

/// How long an interval was, as a power of two that it does not reach: what lasted `n` ns has a level `l` with `n < 2^l`.
/// An interval of level `l` that covers a moment began less than `2^l` ns before it, which is what makes a search for
/// those that do short.
pub(super) fn level(since_ns: u64, until_ns: u64) -> i64 {
    i64::from(u64::BITS - until_ns.saturating_sub(since_ns).leading_zeros())
}

/// The level of an interval that has no end yet.
pub(super) const OPEN_LEVEL: i64 = 64;

/// A database as the first version left it.
#[cfg(test)]
pub(super) fn version_1(connection: &Connection) {
    connection.execute_batch(STEPS[0]).expect("its layout");
    connection.pragma_update(None, "application_id", APPLICATION_ID).expect("its mark");
    connection.pragma_update(None, "user_version", 1).expect("its version");
    add_words(connection).expect("its words");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::change::ChangeKind;

    #[test]
    fn an_interval_is_shorter_than_its_level_says_and_not_half_as_short() {
        for length in [0, 1, 2, 3, 4, 1_000, (1 << 40) - 1, 1 << 40, u64::MAX >> 1] {
            let level = level(7, 7 + length);
            assert!(u128::from(length) < 1 << level, "{length} ns, level {level}");
            assert!(level == 0 || u128::from(length) >= 1 << (level - 1), "{length} ns, level {level}");
        }
        assert_eq!(level(9, 3), 0, "an end before the beginning");
    }

    #[test]
    fn every_word_of_the_stream_has_a_number() {
        for kind in [ChangeKind::Found, ChangeKind::Exited, ChangeKind::Deferred, ChangeKind::Pinned] {
            assert!(word_number(kind.word()).is_some(), "{}", kind.word());
        }
        assert_eq!(word_number("opened"), Some(1), "numbers are in files");
        assert_eq!(word_number("clock-set"), Some(29), "numbers are in files");
    }

    #[test]
    fn a_new_file_gets_the_layout_of_this_version_and_a_second_opening_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.db");
        for _ in 0..2 {
            let mut connection = Connection::open(&path).unwrap();
            migrate(&mut connection).unwrap();
            assert_eq!(check(&connection).unwrap(), VERSION);
            let words: i64 = connection.query_row("SELECT count(*) FROM word", [], |row| row.get(0)).unwrap();
            assert_eq!(words, WORDS.len() as i64);
        }
    }

    #[test]
    fn a_journal_with_fewer_words_gets_those_that_were_added_since() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        connection.execute("DELETE FROM word WHERE id > 20", []).unwrap();
        migrate(&mut connection).unwrap();
        let last: String = connection
            .query_row("SELECT word FROM word ORDER BY id DESC LIMIT 1", [], |row| row.get(0))
            .unwrap();
        assert_eq!(last, "clock-set");
    }

    #[test]
    fn a_journal_of_version_1_gets_what_was_added_and_keeps_what_it_has() {
        let mut old = Connection::open_in_memory().unwrap();
        version_1(&old);
        old.execute_batch(
            "INSERT INTO boot (boot_id, wall_offset_ns) VALUES ('b', 7);
             INSERT INTO event (boot, at_ns, what) VALUES (1, 5, 1);",
        )
        .unwrap();
        assert_eq!(check(&old).unwrap(), 1);
        migrate(&mut old).unwrap();
        assert_eq!(check(&old).unwrap(), VERSION);
        let number = |sql: &str| old.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!((number("SELECT at_ns FROM events"), number("SELECT count(*) FROM verdict")), (5, 0));
        // As a new file has it: the way there makes no difference.
        let mut new = Connection::open_in_memory().unwrap();
        migrate(&mut new).unwrap();
        let layout = |db: &Connection| -> Vec<String> {
            let mut select =
                db.prepare("SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name").unwrap();
            select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        assert_eq!(layout(&old), layout(&new));
    }

    #[test]
    fn a_newer_layout_and_a_database_of_somebody_else_are_refused_and_not_touched() {
        let mut newer = Connection::open_in_memory().unwrap();
        migrate(&mut newer).unwrap();
        newer.pragma_update(None, "user_version", VERSION + 1).unwrap();
        let refused = migrate(&mut newer).unwrap_err();
        assert!(matches!(refused, JournalError::Newer { found, .. } if found == VERSION + 1), "{refused}");
        let mut foreign = Connection::open_in_memory().unwrap();
        foreign.execute_batch("CREATE TABLE cookies (a)").unwrap();
        assert!(matches!(migrate(&mut foreign), Err(JournalError::Foreign)));
        let tables: i64 =
            foreign.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(tables, 1);
    }
}
