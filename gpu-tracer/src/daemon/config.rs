//! The configuration file, TOML. A key that does not exist is refused, with the nearest one that does.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::diagnose::{ROLES, RoleRule, Roles};

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
    /// `auto`, `full`, `lean` or `snapshot`.
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
    /// Programs of this site, and what they are.
    #[serde(default)]
    pub(super) role: Vec<Role>,
}

/// A `[[role]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Role {
    /// One of [`ROLES`].
    name: String,
    /// Path of an executable, or the name of its file.
    exe: String,
}

const KEYS: [&str; 14] = [
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
    "role",
];
const KEYS_OF_A_ROLE: [&str; 2] = ["name", "exe"];

impl Role {
    fn rule(&self) -> Result<RoleRule, String> {
        let Some(role) = ROLES.into_iter().find(|known| *known == self.name) else {
            return Err(unknown("role", &self.name, &ROLES));
        };
        if self.exe.is_empty() || self.exe.contains('/') && !self.exe.starts_with('/') {
            return Err(format!(
                "`{}` is no executable: give its whole path, or the name of its file alone",
                self.exe.escape_debug()
            ));
        }
        Ok(RoleRule { role, exe: self.exe.clone() })
    }
}

impl Config {
    /// Who plays which role. What is wrong was refused when the configuration was read.
    pub(super) fn roles(&self) -> Roles {
        let rules = self.role.iter().filter_map(|role| role.rule().ok()).collect();
        Roles { rules, ..Roles::default() }
    }
}

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
    refuse_unknown(&table, &KEYS)?;
    let roles = table.get("role").and_then(toml::Value::as_array).into_iter().flatten();
    for role in roles.filter_map(toml::Value::as_table) {
        refuse_unknown(role, &KEYS_OF_A_ROLE).map_err(|problem| format!("[[role]]: {problem}"))?;
    }
    // From the text and not from the table: so an error says in which line.
    let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
    config
        .role
        .iter()
        .try_for_each(|role| role.rule().map(drop).map_err(|problem| format!("[[role]]: {problem}")))?;
    Ok(config)
}

fn refuse_unknown(table: &toml::Table, keys: &[&'static str]) -> Result<(), String> {
    match table.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(key) => Err(unknown("key", key, keys)),
        None => Ok(()),
    }
}

/// There is no such thing; is another meant?
fn unknown(what: &str, word: &str, known: &[&'static str]) -> String {
    let word_shown = word.escape_debug();
    match nearest(word, known) {
        Some(nearest) => format!("there is no {what} `{word_shown}`; is `{nearest}` meant?"),
        None => format!("there is no {what} `{word_shown}`; there are {}", known.join(", ")),
    }
}

/// The word that it takes the fewest changes to come to, if they are few.
fn nearest(word: &str, known: &[&'static str]) -> Option<&'static str> {
    let plain = word.to_lowercase().replace('_', "-");
    let (distance, nearest) = known.iter().map(|known| (distance(&plain, known), *known)).min()?;
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
    fn roles_of_this_site_are_read_and_what_means_nothing_is_refused() {
        let text = "plan = 'lean'\n[[role]]\nname = 'monitor'\nexe = '/usr/bin/my-exporter'\n\
                    [[role]]\nname = 'infrastructure'\nexe = 'site-agent'\n";
        let rules = parse(text).unwrap().roles().rules;
        let rule = |role, exe: &str| RoleRule { role, exe: exe.to_owned() };
        assert_eq!(rules, [rule("monitor", "/usr/bin/my-exporter"), rule("infrastructure", "site-agent")]);
        let problem = |role: &str| parse(&format!("[[role]]\n{role}\n")).unwrap_err();
        assert!(
            problem("name = 'monitor'\nexec = '/x'")
                .contains("[[role]]: there is no key `exec`; is `exe` meant?")
        );
        assert!(problem("name = 'montior'\nexe = '/x'").contains("no role `montior`; is `monitor` meant?"));
        assert!(problem("name = 'x'\nexe = '/x'").contains("there are infrastructure, "));
        assert!(problem("name = 'monitor'").contains("exe"), "{}", problem("name = 'monitor'"));
        for exe in ["", "bin/x", "./x"] {
            let problem = problem(&format!("name = 'monitor'\nexe = '{exe}'"));
            assert!(problem.contains("no executable"), "{problem}");
        }
        assert!(parse("roles = []").unwrap_err().contains("`role` meant"));
    }

    #[test]
    fn every_line_of_the_example_means_something() {
        let example = include_str!("../../../deploy/gpu-tracer.toml");
        assert_eq!(parse(example).unwrap(), Config::default(), "as shipped it says nothing");
        let is_setting =
            |line: &str| line.starts_with("#[[") || line.contains(" = ") && !line.starts_with("# ");
        let lines = example.lines().filter(|line| is_setting(line)).map(|line| line.trim_start_matches('#'));
        let used = lines.collect::<Vec<_>>().join("\n");
        assert!(KEYS.iter().all(|key| used.contains(key)), "all keys are shown:\n{used}");
        assert_eq!(parse(&used).unwrap().role.len(), 1);
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
