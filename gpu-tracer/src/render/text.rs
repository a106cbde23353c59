//! Makes text that a process chose for itself safe to print, and fits it into columns.
//!
//! What is escaped, and how it looks:
//!
//! | what | becomes |
//! |---|---|
//! | tab, line feed, carriage return | `\t` `\n` `\r` |
//! | other C0 controls and DEL | `\x1b` |
//! | bytes that are not UTF-8 | `\xff` |
//! | C1 controls; bidirectional marks, embeddings, overrides and isolates; characters without a width of their own (zero-width, combining, tags, fillers); every white space but the ordinary one; line and paragraph separators | `\u{202e}` |
//! | a space at the very beginning or end | `\x20`, so that a name made of blanks is not invisible |
//! | a backslash | itself, but `\\` where what follows would make it read as one of the above |
//!
//! The last rule keeps ordinary text (regular expressions, `systemd` units such as `dev-disk-by\x2duuid.swap`) as it is, for
//! copying, and still lets the original bytes be recovered: no two texts look alike because of an escape. Letters of all scripts
//! are left alone; a combining mark is not, because it would change the column to its left.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar as _;

use crate::model::RawText;

/// What stands for text that was cut off: one column.
pub const ELLIPSIS: char = '…';

/// Does this character hide, reorder, or move what is around it when it is printed?
///
/// True for controls, for white space other than the ordinary space, and for everything that takes no column of its own.
#[must_use]
pub fn is_deceptive(ch: char) -> bool {
    match ch {
        ' '..='~' => false,
        // Invisible, whatever width tables say: soft hyphen, Hangul and Khmer fillers, Braille blank, annotation marks.
        '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{2800}' | '\u{3164}'
        | '\u{ffa0}' => true,
        // Bidirectional controls and deprecated formatting, in case a width table gives them one.
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}' => true,
        _ => ch.is_control() || ch.is_whitespace() || ch.width().unwrap_or(0) == 0,
    }
}

/// These bytes as text without anything that could fool a terminal or a reader; see the module for the rules.
///
/// Empty only for no bytes at all.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for ch in chunk.valid().chars() {
            let rest = &bytes[at + ch.len_utf8()..];
            match ch {
                ' ' if at == 0 || rest.is_empty() => out.push_str("\\x20"),
                '\\' if would_mislead(rest) => out.push_str("\\\\"),
                ch if is_deceptive(ch) => push_escaped(&mut out, ch),
                ch => out.push(ch),
            }
            at += ch.len_utf8();
        }
        for byte in chunk.invalid() {
            push_byte(&mut out, *byte);
        }
        at += chunk.invalid().len();
    }
    out
}

/// [`escape`] for what is text already.
#[must_use]
pub fn escape_str(text: &str) -> String {
    escape(text.as_bytes())
}

/// [`escape`] for a sentence with names in it that [`RawText::to_text`] wrote: bytes that are not UTF-8 are escaped once, not twice.
#[must_use]
pub fn escape_sentence(text: &str) -> String {
    escape(&RawText::from_text(text).0)
}

fn push_escaped(out: &mut String, ch: char) {
    match ch {
        '\t' => out.push_str("\\t"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\0'..='\x7f' => push_byte(out, ch as u8),
        // C1 controls too: `\x85` is kept for the byte that is no UTF-8.
        _ => write!(out, "\\u{{{:x}}}", u32::from(ch)).expect("writing to a String cannot fail"),
    }
}

fn push_byte(out: &mut String, byte: u8) {
    write!(out, "\\x{byte:02x}").expect("writing to a String cannot fail");
}

/// Would a backslash before `rest` read as an escape of ours once `rest` is escaped too?
fn would_mislead(rest: &[u8]) -> bool {
    match rest {
        [] => false,
        [b'\\' | b'n' | b't' | b'r', ..] | [b'u', b'{', ..] => true,
        [b'x', high, low, ..] => {
            let digit = |byte: u8| (byte as char).to_digit(16);
            match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => !(0x21..0x7f).contains(&(high * 16 + low)),
                _ => false,
            }
        }
        [b' '] => true,
        _ => match rest.utf8_chunks().next() {
            // Whatever is escaped begins with a backslash itself.
            Some(chunk) => chunk.valid().chars().next().is_none_or(is_deceptive),
            None => false,
        },
    }
}

/// Columns that escaped text takes on a terminal.
#[must_use]
pub fn columns(escaped: &str) -> usize {
    escaped.chars().map(|ch| ch.width().unwrap_or(0)).sum()
}

/// The longest beginning of escaped text that fits into `width` columns, with [`ELLIPSIS`] where something is missing.
///
/// An escape is never cut in half. Empty only for empty text or no columns at all.
#[must_use]
pub fn fit(escaped: &str, width: usize) -> String {
    if columns(escaped) <= width {
        return escaped.to_owned();
    }
    let Some(room) = width.checked_sub(1) else { return String::new() };
    let mut out = String::new();
    let mut taken = 0;
    for unit in units(escaped) {
        taken += columns(unit);
        if taken > room {
            break;
        }
        out.push_str(unit);
    }
    out.push(ELLIPSIS);
    out
}

/// Escaped text in lines of at most `width` columns, broken at spaces where possible. At least one line.
#[must_use]
pub fn wrap(escaped: &str, width: usize) -> Vec<String> {
    let width = width.max(2); // the widest character takes two
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut taken = 0;
    for word in escaped.split(' ') {
        let needed = columns(word);
        if taken > 0 && taken + 1 + needed <= width {
            line.push(' ');
            taken += 1;
        } else if taken > 0 {
            lines.push(std::mem::take(&mut line));
            taken = 0;
        }
        for unit in units(word) {
            // An escape that is wider than a whole line has to be broken after all.
            let parts: Vec<&str> =
                if columns(unit) > width { unit.split_inclusive(|_| true).collect() } else { vec![unit] };
            for part in parts {
                if taken + columns(part) > width {
                    lines.push(std::mem::take(&mut line));
                    taken = 0;
                }
                line.push_str(part);
                taken += columns(part);
            }
        }
    }
    if taken > 0 || lines.is_empty() {
        lines.push(line);
    }
    for line in &mut lines {
        line.truncate(line.trim_end_matches(' ').len());
    }
    lines
}

/// Escaped text in pieces that belong together: characters and whole escapes.
fn units(escaped: &str) -> impl Iterator<Item = &str> {
    let mut rest = escaped;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let length = if first == '\\' { escape_length(rest) } else { first.len_utf8() };
        let (unit, tail) = rest.split_at(length);
        rest = tail;
        Some(unit)
    })
}

/// Length of the escape at the start of `text`; 1 when the backslash there is only a backslash.
fn escape_length(text: &str) -> usize {
    match text.as_bytes() {
        [_, b'\\' | b'n' | b't' | b'r', ..] => 2,
        [_, b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => 4,
        [_, b'u', b'{', ..] => text.find('}').map_or(1, |end| end + 1),
        _ => 1,
    }
}

#[cfg(test)]
#[path = "tests/text.rs"]
mod tests;
