//! Small pieces of sentences.

use crate::model::RawText;
use crate::model::diagnosis::Finding;

/// Bytes of a name in a sentence: the kernel keeps 15.
const NAME: usize = 20;

/// `GPU 4`, or `The shared devices`.
pub(super) fn subject(gpu: Option<u32>) -> String {
    gpu.map_or_else(|| "The device".to_owned(), |gpu| format!("GPU {gpu}"))
}

/// `PID 428 (python3)`, `thread 440 of PID 428 (python3)`
pub(super) fn who(finding: &Finding) -> String {
    let thread =
        if finding.tid == finding.pid { String::new() } else { format!("thread {} of ", finding.tid) };
    format!("{thread}{}", process(finding))
}

/// `PID 428 (python3)`
pub(super) fn process(finding: &Finding) -> String {
    let name = name(&finding.comm);
    let name = if name.is_empty() { name } else { format!(" ({name})") };
    format!("PID {}{name}", finding.pid)
}

/// What a process calls itself, for a sentence.
pub(super) fn name(comm: &RawText) -> String {
    match comm.0.get(..NAME) {
        Some(start) if start.len() < comm.0.len() => format!("{}...", RawText(start.into()).to_text()),
        _ => comm.to_text(),
    }
}

/// The first `shown` of these, the others counted.
fn first(all: &[String], shown: usize) -> String {
    match (&all[..shown.min(all.len())], all.len().saturating_sub(shown)) {
        ([], 0) => String::new(),
        ([], more) => format!("{more} of them"),
        (named, more @ 1..) => format!("{} and {more} more", named.join(", ")),
        ([one], 0) => one.clone(),
        ([start @ .., last], 0) => format!("{} and {last}", start.join(", ")),
    }
}

/// At most three of these, the others counted.
pub(super) fn few(all: &[String]) -> String {
    first(all, 3)
}

/// At most three of these, but no more than fit into so many characters. One always does.
pub(super) fn few_within(all: &[String], room: usize) -> String {
    let candidates = [3, 2].map(|shown| first(all, shown));
    candidates.into_iter().find(|text| text.chars().count() <= room).unwrap_or_else(|| first(all, 1))
}

/// [`few`] of borrowed names.
pub(super) fn few_of(all: &[&str]) -> String {
    few(&all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_names_as_there_is_room_for_are_said_and_the_others_counted() {
        let all = ["a", "bb", "ccc", "d"].map(str::to_owned);
        assert_eq!(few(&all[..0]), "");
        assert_eq!(few(&all[..1]), "a");
        assert_eq!(few(&all[..2]), "a and bb");
        assert_eq!(few(&all[..3]), "a, bb and ccc");
        assert_eq!(few(&all), "a, bb, ccc and 1 more");
        assert_eq!(few_within(&all, 17), "a, bb and 2 more");
        assert_eq!(few_within(&all, 3), "a and 3 more");
    }
}
