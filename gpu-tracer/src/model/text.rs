//! Text that a process chose for itself: comm, cmdline, exe, cgroup.
//!
//! Such text is hostile until escaped. It is kept as the bytes that the kernel gave, and
//! there is deliberately no `Display`: to print it one has to go through `render`.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes from a process, unescaped. Cheap to clone: thousands of open files have the same opener.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawText(pub Arc<[u8]>);

impl RawText {
    /// The bytes up to the first NUL, for fixed-size kernel fields such as `comm`.
    #[must_use]
    pub fn from_c_field(field: &[u8]) -> Self {
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        Self(field[..end].into())
    }

    /// As text that [`RawText::from_text`] turns back into the same bytes: a byte that is not UTF-8 becomes `\xNN`, and so does
    /// a backslash that would read as the beginning of such an escape. All other backslashes are left alone.
    ///
    /// Control characters are still in it: this is for formats with an escaping of their own (JSON) and for sentences, which
    /// are escaped when they are printed.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            let mut rest = chunk.valid();
            while let Some(at) = rest.find('\\') {
                let (before, from) = rest.split_at(at);
                text.push_str(before);
                text.push_str(if escaped_byte(from.as_bytes()).is_some() { "\\x5c" } else { "\\" });
                rest = &from[1..];
            }
            text.push_str(rest);
            for byte in chunk.invalid() {
                text.push_str(&format!("\\x{byte:02x}"));
            }
        }
        text
    }

    /// The bytes that [`RawText::to_text`] wrote; text that it never wrote gives the bytes that it looks like.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((first, tail)) = rest.split_first() {
            match escaped_byte(rest) {
                Some(byte) => {
                    bytes.push(byte);
                    rest = &rest[ESCAPE..];
                }
                None => {
                    bytes.push(*first);
                    rest = tail;
                }
            }
        }
        Self(bytes.into())
    }

    /// No bytes at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for RawText {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<Vec<u8>> for RawText {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

/// A name of our own choosing, as of a device. Cheap to clone: thousands of open files are of the same device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for RawText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            // Nothing in it to be escaped.
            Ok(text) if !self.0.contains(&b'\\') => serializer.serialize_str(text),
            _ => serializer.serialize_str(&self.to_text()),
        }
    }
}

impl<'de> Deserialize<'de> for RawText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::from_text(&text))
    }
}

/// Length of `\xNN`.
const ESCAPE: usize = 4;

/// The byte of a `\xNN` that `text` begins with. Only those count that are ever written, and in lower case: the names of systemd's
/// units (`dev-disk-by\x2duuid.swap`) stay as they are.
fn escaped_byte(text: &[u8]) -> Option<u8> {
    let digits = text.get(..ESCAPE)?.strip_prefix(b"\\x")?;
    let digit = |at: usize| char::from(digits[at]).to_digit(16).filter(|_| !digits[at].is_ascii_uppercase());
    let byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    (byte == b'\\' || !byte.is_ascii()).then_some(byte)
}

/// `12.3 s`
#[must_use]
pub fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// `1 file`, `2 files`.
#[must_use]
pub fn counted<N: std::fmt::Display + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    format!("{number} {}", if number == N::from(1) { one } else { many })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::render::tests::hostile::hostile_bytes;

    #[test]
    fn bytes_that_are_no_text_and_text_that_looks_like_them_are_told_apart() {
        let written = |bytes: &[u8]| RawText(bytes.into()).to_text();
        assert_eq!(written(b"caf\xe9"), "caf\\xe9");
        assert_eq!(written(b"caf\\xe9"), "caf\\x5cxe9");
        let others = "\\x\\d+ C:\\new by\\x2duuid \\xFF";
        assert_eq!(written(others.as_bytes()), others, "other backslashes stay");
        assert_eq!(RawText::from_text("\\xe9\\x5cxe9\\x5cx5c\\x").0[..], *b"\xe9\\xe9\\x5c\\x");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!([0u64, 1, 2].map(|n| counted(n, "file", "files")), ["0 files", "1 file", "2 files"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_come_back_from_their_json(bytes in hostile_bytes()) {
            let raw = RawText::from(bytes);
            let json = serde_json::to_string(&raw).unwrap();
            prop_assert_eq!(&serde_json::from_str::<RawText>(&json).unwrap(), &raw, "{}", json);
            prop_assert_eq!(&RawText::from_text(&raw.to_text()), &raw);
        }
    }
}
