//! The configuration file, TOML. A key that does not exist is refused, with the nearest one that does.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Where it usually is.
pub(super) const USUAL: &str = "/etc/gpu-tracer.toml";
/// No more of it is read.
const MAX: u64 = 1 << 20;

/// What can be configured; everything is optional, and the command line takes precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Config {
    /// Where to listen.
    pub(super) socket: Option<PathBuf>,
    /// Where to keep what outlives the daemon.
    pub(super) state_dir: Option<PathBuf>,
    /// Where in a BPF file system the hooks are kept.
    pub(super) pin_dir: Option<PathBuf>,
    /// `address:port` for `/metrics`.
    pub(super) metrics_listen: Option<String>,
    /// `auto`, `lean` or `snapshot`.
    pub(super) plan: Option<String>,
    /// Group whose members see everything: a name or a number.
    pub(super) group: Option<String>,
    /// Devices that count as GPUs, as for `--device`.
    pub(super) devices: Option<Vec<String>>,
    /// Bytes of the ring of events.
    pub(super) ring_bytes: Option<u32>,
    /// Seconds between measurements of GPU memory for the journal; 0: none.
    pub(super) measure_memory_seconds: Option<u32>,
    /// Keep a journal?
    pub(super) journal: Option<bool>,
    /// Days of history kept in it.
    pub(super) journal_days: Option<u32>,
    /// MiB that it may have.
    pub(super) journal_size_mib: Option<u64>,
    /// MiB of its file system that stay free.
    pub(super) journal_min_free_mib: Option<u64>,
}

const KEYS: [&str; 13] = [
    "socket",
    "state-dir",
    "pin-dir",
    "metrics-listen",
    "plan",
    "group",
    "devices",
    "ring-bytes",
    "journal",
    "journal-days",
    "journal-size-mib",
    "journal-min-free-mib",
    "measure-memory-seconds",
];

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// It is not what it should be.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
}

/// Reads it. A file that is not there is an empty one, unless it was asked for.
///
/// # Errors
/// It cannot be read, is no TOML, or has a key or a value that means nothing.
pub(super) fn read(path: Option<&Path>) -> Result<Config, ConfigError> {
    use std::io::Read as _;
    let usual = Path::new(USUAL);
    let (path, must_exist) = path.map_or((usual, false), |path| (path, true));
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            return Ok(Config::default());
        }
        Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
        Ok(_) => {}
    }
    parse(&text).map_err(|problem| ConfigError::Content { path: path.to_owned(), problem })
}

fn parse(text: &str) -> Result<Config, String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
    if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(match nearest(key) {
            Some(nearest) => format!("there is no key `{key}`; is `{nearest}` meant?"),
            None => format!("there is no key `{key}`; there are {}", KEYS.join(", ")),
        });
    }
    // From the text and not from the table: so an error says in which line.
    toml::from_str(text).map_err(|error| error.to_string())
}

/// The key that it takes the fewest changes to come to, if they are few.
fn nearest(key: &str) -> Option<&'static str> {
    let plain = key.to_lowercase().replace('_', "-");
    let (distance, nearest) = KEYS.iter().map(|known| (distance(&plain, known), *known)).min()?;
    (distance <= plain.len().max(nearest.len()) / 2).then_some(nearest)
}

/// Levenshtein's: letters inserted, removed or replaced.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_configured() {
        let text = "socket = '/run/x.sock'\nplan = 'lean'\ngroup = 'gpu'\ndevices = ['1:5=nvidia0']\nring-bytes = 65536\n";
        let config = parse(text).unwrap();
        let expected = Config {
            socket: Some("/run/x.sock".into()),
            plan: Some("lean".to_owned()),
            group: Some("gpu".to_owned()),
            devices: Some(vec!["1:5=nvidia0".to_owned()]),
            ring_bytes: Some(65536),
            ..Config::default()
        };
        assert_eq!(config, expected);
        assert_eq!(parse("# nothing\n").unwrap(), Config::default());
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_known_one() {
        let problem = |text: &str| parse(text).unwrap_err();
        assert!(problem("sokcet = 'x'").contains("`socket` meant"), "{}", problem("sokcet = 'x'"));
        assert!(problem("state_dir = 'x'").contains("`state-dir` meant"));
        assert!(problem("metrics_lsten = 'x'").contains("`metrics-listen` meant"));
        assert!(problem("colour = 'x'").contains("there are socket, "), "{}", problem("colour = 'x'"));
        assert!(problem("socket = 7").contains("line 1"), "{}", problem("socket = 7"));
        assert!(problem("socket =").contains("line 1"));
    }

    #[test]
    fn only_the_usual_file_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(Some(&dir.path().join("none.toml"))).unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }), "{error}");
    }

    #[test]
    fn distances_are_those_of_the_book() {
        assert_eq!((distance("kitten", "sitting"), distance("", "abc"), distance("same", "same")), (3, 3, 0));
    }
}
