//! What the answer is printed on: how wide, in colour or not; and what users are called here.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{IsTerminal as _, Read as _};

use rustix::termios::tcgetwinsize;

/// Width of a terminal that tells none.
const USUAL_WIDTH: usize = 100;
/// Narrower than this nothing can be laid out; wider than this nobody reads.
const WIDTHS: std::ops::RangeInclusive<usize> = 20..=1000;
/// No more of `/etc/passwd` is read.
const PASSWD_MAX: u64 = 4 << 20;

/// Properties of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Screen {
    /// Columns; `None` when it is no terminal.
    pub(super) width: Option<usize>,
    /// May it be coloured?
    pub(super) color: bool,
}

impl Screen {
    /// Of this process, now.
    pub(super) fn of_standard_output() -> Self {
        let out = std::io::stdout();
        let columns = tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
        Self::of(out.is_terminal(), columns, |name| std::env::var_os(name))
    }

    /// From what is known of a terminal: the columns it tells (0 for none, as serial lines do) and the environment.
    fn of<S: AsRef<OsStr>>(terminal: bool, columns: usize, variable: impl Fn(&str) -> Option<S>) -> Self {
        if !terminal {
            return Self { width: None, color: false };
        }
        let set = |name| variable(name).filter(|value| !value.as_ref().is_empty());
        let told = || set("COLUMNS")?.as_ref().to_str()?.parse().ok();
        let width =
            if columns > 0 { columns } else { told().filter(|width| *width > 0).unwrap_or(USUAL_WIDTH) };
        let capable = set("TERM").is_some_and(|term| term.as_ref() != "dumb");
        Self {
            width: Some(width.clamp(*WIDTHS.start(), *WIDTHS.end())),
            color: capable && set("NO_COLOR").is_none(),
        }
    }
}

/// Names of users, from `/etc/passwd` alone.
///
/// Directory services are not asked: they may hang, just when somebody needs an answer about this host.
#[derive(Debug, Default)]
pub(super) struct Users(HashMap<u32, String>);

impl Users {
    /// Of this host; none where they cannot be read.
    pub(super) fn of_host() -> Self {
        let mut text = Vec::new();
        let read = File::open("/etc/passwd").and_then(|file| file.take(PASSWD_MAX).read_to_end(&mut text));
        if read.is_err() {
            text.clear();
        }
        Self::parse(&text)
    }

    fn parse(passwd: &[u8]) -> Self {
        let mut users = HashMap::new();
        for line in passwd.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b':');
            let (Some(name), Some(uid)) = (fields.next(), fields.nth(1)) else { continue };
            let Some(uid) = std::str::from_utf8(uid).ok().and_then(|uid| uid.parse().ok()) else { continue };
            if !name.is_empty() {
                // The first name of a number is the one that other tools show.
                users.entry(uid).or_insert_with(|| String::from_utf8_lossy(name).into_owned());
            }
        }
        Self(users)
    }

    pub(super) fn name(&self, uid: u32) -> Option<String> {
        self.0.get(&uid).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_and_colour_follow_the_terminal_and_the_environment() {
        let screen = |terminal, columns, set: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                set.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            Screen::of(terminal, columns, |name| {
                set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            })
        };
        let shown = |width, color| Screen { width, color };
        let xterm = ("TERM", "xterm");
        assert_eq!(screen(false, 80, &[xterm, ("COLUMNS", "40")]), shown(None, false), "a pipe");
        assert_eq!(
            screen(true, 80, &[xterm, ("COLUMNS", "40")]),
            shown(Some(80), true),
            "the terminal knows best"
        );
        assert_eq!(screen(true, 0, &[xterm, ("COLUMNS", "40")]), shown(Some(40), true), "a serial line");
        assert_eq!(screen(true, 0, &[xterm, ("COLUMNS", "x")]), shown(Some(100), true));
        assert_eq!(screen(true, 3, &[xterm]), shown(Some(20), true));
        assert_eq!(screen(true, 80, &[xterm, ("NO_COLOR", "1")]), shown(Some(80), false));
        assert_eq!(screen(true, 80, &[xterm, ("NO_COLOR", "")]), shown(Some(80), true), "empty means unset");
        assert_eq!(screen(true, 80, &[("TERM", "dumb")]), shown(Some(80), false));
        assert_eq!(screen(true, 80, &[]), shown(Some(80), false));
    }

    #[test]
    fn users_are_read_from_well_formed_lines_only() {
        let users = Users::parse(b"root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:/bin/sh\n\nbad\nx:y\nal\xff:x:1000:\n:x:5:\nz:x:-1:\n");
        assert_eq!(users.name(0).as_deref(), Some("root"));
        assert_eq!(users.name(1000).as_deref(), Some("al\u{fffd}"));
        assert_eq!((users.name(5), users.name(1)), (None, None));
    }
}
