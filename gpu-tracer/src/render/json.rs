//! JSON that is safe to show as it is: one document, indented by two spaces, a line feed at its end.
//!
//! JSON itself demands escapes only for C0 controls, quotes and backslashes. Here everything that could fool a terminal
//! (see [`super::text::is_deceptive`]) is written as `\uXXXX` as well. Readers get the original text back.

pub mod answer;

use std::io;

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use super::text::is_deceptive;

/// Writes a value as one JSON document.
///
/// # Errors
/// What `out` says; a value that cannot be JSON (maps with keys that are no text) is an [`io::ErrorKind::InvalidData`].
pub fn write<T: Serialize + ?Sized>(value: &T, out: &mut (impl io::Write + ?Sized)) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(&mut *out, Printable(PrettyFormatter::new()));
    value.serialize(&mut serializer)?;
    out.write_all(b"\n")
}

/// Writes a value as one JSON document on one line, for streams.
///
/// # Errors
/// As for [`write`].
pub fn write_line<T: Serialize + ?Sized>(value: &T, out: &mut (impl io::Write + ?Sized)) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(&mut *out, Printable(CompactFormatter));
    value.serialize(&mut serializer)?;
    out.write_all(b"\n")
}

/// Lays out as the formatter inside does and leaves nothing deceptive unescaped.
struct Printable<F>(F);

impl<F: Formatter> Formatter for Printable<F> {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        // Almost all text is this, and it need not be taken apart into characters.
        if rest.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return out.write_all(rest.as_bytes());
        }
        while let Some((at, ch)) = rest.char_indices().find(|(_, ch)| is_deceptive(*ch)) {
            out.write_all(&rest.as_bytes()[..at])?;
            for unit in ch.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = &rest[at + ch.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
#[path = "tests/json.rs"]
mod tests;
