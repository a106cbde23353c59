//! Small pieces of sentences.

use crate::model::diagnosis::Finding;

/// Longest name of a program in a sentence.
const NAME: usize = 40;

/// `GPU 4`, or `The shared devices`.
pub(super) fn subject(gpu: Option<u32>) -> String {
    gpu.map_or_else(|| "The device".to_owned(), |gpu| format!("GPU {gpu}"))
}

/// `PID 428 (python3)`, `thread 440 of PID 428 (python3)`
pub(super) fn who(finding: &Finding) -> String {
    let name = finding.comm.to_text();
    let name = if name.is_empty() { String::new() } else { format!(" ({})", short(&name)) };
    let thread =
        if finding.tid == finding.pid { String::new() } else { format!("thread {} of ", finding.tid) };
    format!("{thread}PID {}{name}", finding.pid)
}

fn short(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let mut text: String = name.chars().take(NAME).collect();
    text.push_str("...");
    text
}

/// At most three of these, the others counted.
pub(super) fn few(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        [one, two] => format!("{one} and {two}"),
        [one, two, three] => format!("{one}, {two} and {three}"),
        [one, two, three, rest @ ..] => format!("{one}, {two}, {three} and {} more", rest.len()),
    }
}

/// [`few`] of borrowed names.
pub(super) fn few_of(all: &[&str]) -> String {
    few(&all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
}
