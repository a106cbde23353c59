//! What the daemon says of itself, on standard error. The priorities are those that a journal reads at the begin of a line.

use std::io::Write as _;

use crate::render::text::escape_str;

/// Worth knowing.
pub(super) fn info(text: &str) {
    say(6, text);
}

/// Somebody should look at it.
pub(super) fn warning(text: &str) {
    say(4, text);
}

fn say(priority: u8, text: &str) {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let prefix = if journal { format!("<{priority}>") } else { "gpu-tracer: ".to_owned() };
    // Whoever closed standard error does not want to know.
    let _ = writeln!(std::io::stderr(), "{prefix}{}", escape_str(text));
}
