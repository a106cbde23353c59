//! One line for each thing that happens: when, what, to which open file, by whom.

use super::text::{escape, escape_str};
use crate::model::happening::{Happening, Party};
use crate::model::{RawText, counted};

/// Columns of the word that says what happened.
const WORD: usize = 13;
/// Columns of the device and the number of the open file.
const FILE: usize = 16;
/// Most of a command line that is shown.
const CMDLINE: usize = 60;

/// The line, without a line feed.
#[must_use]
pub fn line(happening: &Happening, color: bool) -> String {
    let word = format!("{:WORD$}", escape_str(&happening.what));
    let word = match emphasis(&happening.what).filter(|_| color) {
        Some(code) => format!("\x1b[{code}m{word}\x1b[0m"),
        None => word,
    };
    let by_then = if happening.exact { "" } else { " (by then)" };
    let rest = who_and_more(happening);
    let text = format!("{}  {word}  {:FILE$}  {rest}{by_then}", time(&happening.at), file(happening));
    text.trim_end().to_owned()
}

/// The process concerned and what there is to say beyond the word, escaped.
pub(super) fn who_and_more(happening: &Happening) -> String {
    let who = happening.process.as_ref().map(|process| party(process, happening.tid)).unwrap_or_default();
    let more = details(happening);
    let parts: Vec<&str> =
        [who.as_str(), more.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(": ")
}

/// The time of day: who watches knows the date.
fn time(at: &str) -> String {
    let at = escape_str(at);
    at.get(11..23).map_or_else(|| format!("{at:12}"), |time| format!("{time}Z"))
}

fn file(happening: &Happening) -> String {
    let device = happening.device.as_deref().map(escape_str).unwrap_or_default();
    match happening.file {
        Some(id) => format!("{device} #{id}"),
        None => device,
    }
}

/// `name[PID]`, or `name[PID/TID]` for a thread.
fn party(party: &Party, tid: Option<u32>) -> String {
    let name = if party.comm.is_empty() { "?".to_owned() } else { text(&party.comm) };
    match tid {
        Some(tid) => format!("{name}[{}/{tid}]", party.pid),
        None => format!("{name}[{}]", party.pid),
    }
}

fn parties(parties: &[Party]) -> String {
    let parties: Vec<String> = parties.iter().map(|one| party(one, None)).collect();
    parties.join(", ")
}

fn text(raw: &RawText) -> String {
    escape(&raw.0)
}

fn details(happening: &Happening) -> String {
    let cause = || happening.cause.as_deref().map(escape_str).unwrap_or_default();
    let count = happening.count.unwrap_or(0);
    match happening.what.as_str() {
        "opened" | "found" => command(happening),
        "opening" | "releasing" | "deferred" | "exited" | "unreferenced" => String::new(),
        "open-failed" => happening.errno.map(|errno| format!("errno {errno}")).unwrap_or_default(),
        "inherited" => format!("by fork from {}", parties(&happening.from)),
        "handed-over" => match happening.from.as_slice() {
            [] => "from an unknown process".to_owned(),
            [one] => format!("from {}", party(one, None)),
            several => format!("from one of {}", parties(several)),
        },
        "closed" => match happening.cause.as_deref() {
            Some("exec") => "by exec".to_owned(),
            Some("exit") => "by its end".to_owned(),
            _ => String::new(),
        },
        "renamed" => {
            let name = |name: &Option<RawText>| name.as_ref().map(text).unwrap_or_default();
            format!("{} -> {}", name(&happening.old), name(&happening.new))
        }
        "execed" => happening.new.as_ref().map(|new| format!("now {}", text(new))).unwrap_or_default(),
        "reparented" => {
            let pid = |parties: &[Party]| parties.first().map_or(0, |party| party.pid);
            format!("parent {} -> {}", pid(&happening.from), pid(&happening.by))
        }
        "signalled" | "killed" => sent(happening),
        "exiting" => ending(happening),
        "detached" if !happening.by.is_empty() => {
            format!("in no table any more, dropped by {}", parties(&happening.by))
        }
        "detached" => "in no table any more, and not released".to_owned(),
        "released" => released(happening),
        "gap" => {
            let lost =
                if count > 0 { format!(", {}", counted(count, "event", "events")) } else { String::new() };
            let since = happening.since.as_deref().map(time).unwrap_or_default();
            format!("the record has a hole since {since}: {}{lost}", cause())
        }
        "missed" => format!("{}: they came faster than they were read", counted(count, "line", "lines")),
        "withheld" => {
            format!("{} about other users' processes: ask as root", counted(count, "line", "lines"))
        }
        "module-loaded" | "module-unloaded" => cause(),
        _ => String::new(),
    }
}

fn command(happening: &Happening) -> String {
    let cmdline = happening.process.as_ref().and_then(|process| process.cmdline.as_ref());
    let text = cmdline.map(text).unwrap_or_default();
    match text.char_indices().nth(CMDLINE) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

fn sender(happening: &Happening) -> Option<String> {
    match (happening.by.first(), happening.by_kernel.as_deref()) {
        (Some(by), _) => {
            let uid = by.uid.map(|uid| format!(" (uid {uid})")).unwrap_or_default();
            Some(format!("{}{uid}", party(by, None)))
        }
        (None, Some("out-of-memory")) => Some("the kernel: memory ran out".to_owned()),
        (None, Some(_)) => Some("the kernel".to_owned()),
        (None, None) => None,
    }
}

fn sent(happening: &Happening) -> String {
    let signal = happening.signal.map(signal_name).unwrap_or_default();
    match sender(happening) {
        Some(sender) => format!("{signal} from {sender}"),
        None => signal,
    }
}

fn ending(happening: &Happening) -> String {
    match (happening.signal, happening.exit_status) {
        (Some(signal), _) => {
            let by = sender(happening).map(|sender| format!(" from {sender}")).unwrap_or_default();
            format!("{}{by}", signal_name(signal))
        }
        (None, Some(status)) => format!("status {status}"),
        (None, None) => String::new(),
    }
}

fn released(happening: &Happening) -> String {
    match (happening.after_kill_us, happening.after_exit_us, happening.cause.as_deref()) {
        (Some(us), _, _) => format!("{} after the signal", milliseconds(us)),
        (None, Some(us), _) => format!("{} after it began to exit", milliseconds(us)),
        (None, None, Some("not-seen")) => "not seen any more, which proves nothing".to_owned(),
        _ => String::new(),
    }
}

/// µs as people read them.
pub(super) fn milliseconds(us: u64) -> String {
    if us < 10_000 { format!("{:.1} ms", us as f64 / 1000.0) } else { format!("{} ms", us / 1000) }
}

/// Names of the first 31 signals on every architecture that this is built for.
pub(super) fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = usize::try_from(signal).ok().and_then(|signal| NAMES.get(signal.checked_sub(1)?));
    name.map_or_else(|| format!("signal {signal}"), |name| format!("SIG{name}"))
}

/// What is to stand out: ends in red, doubts in yellow, releases in green.
fn emphasis(what: &str) -> Option<&'static str> {
    match what {
        "killed" | "exiting" => Some("31"),
        "gap" | "missed" | "withheld" | "detached" | "unreferenced" => Some("33"),
        "released" => Some("32"),
        "opened" | "inherited" | "handed-over" => Some("1"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happening(what: &str) -> Happening {
        Happening {
            at: "2026-11-29T15:02:11.123Z".to_owned(),
            what: what.to_owned(),
            file: Some(7),
            device: Some("nvidia0".to_owned()),
            process: Some(Party { pid: 428, comm: "python3".into(), ..Party::default() }),
            exact: true,
            ..Happening::default()
        }
    }

    #[test]
    fn the_story_of_a_killed_heir_reads_from_top_to_bottom() {
        let pkill = Party { pid: 991, uid: Some(0), comm: "pkill".into(), ..Party::default() };
        let lines = [
            Happening {
                from: vec![Party { pid: 430, comm: "serve".into(), ..Party::default() }],
                ..happening("inherited")
            },
            Happening {
                signal: Some(9),
                by: vec![pkill.clone()],
                file: None,
                device: None,
                ..happening("killed")
            },
            Happening {
                signal: Some(9),
                by: vec![pkill],
                file: None,
                device: None,
                tid: Some(440),
                ..happening("exiting")
            },
            Happening { after_kill_us: Some(160_432), exact: false, ..happening("released") },
            Happening {
                cause: Some("ring-full".to_owned()),
                count: Some(12),
                process: None,
                file: None,
                device: None,
                since: Some("2026-11-29T15:02:10.000Z".to_owned()),
                ..happening("gap")
            },
        ];
        let text: Vec<String> = lines.iter().map(|happening| line(happening, false)).collect();
        assert_eq!(
            text,
            [
                "15:02:11.123Z  inherited      nvidia0 #7        python3[428]: by fork from serve[430]",
                "15:02:11.123Z  killed                           python3[428]: SIGKILL from pkill[991] (uid 0)",
                "15:02:11.123Z  exiting                          python3[428/440]: SIGKILL from pkill[991] (uid 0)",
                "15:02:11.123Z  released       nvidia0 #7        python3[428]: 160 ms after the signal (by then)",
                "15:02:11.123Z  gap                              the record has a hole since 15:02:10.000Z: ring-full, 12 events",
            ],
            "\n{}",
            text.join("\n")
        );
    }

    #[test]
    fn no_name_reaches_the_terminal_as_it_is() {
        let evil: RawText = "\x1b[2J\u{202e}\n".into();
        let party = Party { comm: evil.clone(), cmdline: Some(evil.clone()), ..Party::default() };
        let words = [
            "opened",
            "inherited",
            "handed-over",
            "renamed",
            "execed",
            "killed",
            "exiting",
            "detached",
            "gap",
        ];
        for what in words {
            let happening = Happening {
                process: Some(party.clone()),
                from: vec![party.clone()],
                by: vec![party.clone()],
                old: Some(evil.clone()),
                new: Some(evil.clone()),
                device: Some("\x1b[2J".to_owned()),
                cause: Some("\x1b[2J".to_owned()),
                signal: Some(9),
                ..happening(what)
            };
            let line = line(&happening, false);
            assert!(!line.chars().any(super::super::text::is_deceptive), "{what}: {line:?}");
        }
    }
}
