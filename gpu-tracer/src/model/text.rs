//! Text that a process chose for itself: comm, cmdline, exe, cgroup.
//!
//! Such text is hostile until escaped. It is kept as the bytes that the kernel gave, and
//! there is deliberately no `Display`: to print it one has to go through `render`.

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

    /// As text; bytes that are not UTF-8 become `\xNN`, so that nothing is lost and nothing is ambiguous on sight.
    ///
    /// Control characters are still in it: this is for formats with an escaping of their own (JSON).
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            text.push_str(chunk.valid());
            for byte in chunk.invalid() {
                text.push_str(&format!("\\x{byte:02x}"));
            }
        }
        text
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

impl Serialize for RawText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.serialize_str(&self.to_text()),
        }
    }
}

impl<'de> Deserialize<'de> for RawText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(text.into_bytes().into()))
    }
}
