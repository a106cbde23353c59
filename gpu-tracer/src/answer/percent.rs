//! Percent-encoding of what goes into a query.

/// Everything but letters, digits and `-._~` as `%XX`.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The text again; `None` if it is not encoded properly, or no UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => {
                let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
                if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return None;
                }
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &tail[2..];
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_encoded_comes_back(text in ".*") {
            let encoded = encode(&text);
            prop_assert!(encoded.is_ascii() && !encoded.contains(['&', '=', ' ', '+']));
            prop_assert_eq!(decode(&encoded), Some(text));
        }

        #[test]
        fn hostile_text_is_refused_or_understood_and_never_fatal(text in ".*") {
            let _ = decode(&text);
        }
    }
}
