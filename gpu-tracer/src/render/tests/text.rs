use proptest::prelude::*;

use super::*;
use crate::render::tests::hostile::{first_deceptive, hostile_bytes};

/// What the escapes say: the inverse of [`escape`].
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for unit in units(text) {
        match unit {
            "\\\\" => bytes.push(b'\\'),
            "\\n" => bytes.push(b'\n'),
            "\\t" => bytes.push(b'\t'),
            "\\r" => bytes.push(b'\r'),
            _ if unit.len() == 4 && unit.starts_with("\\x") => {
                let byte = u8::from_str_radix(&unit[2..], 16).unwrap();
                match byte {
                    0x21..0x7f => bytes.extend(unit.bytes()),
                    _ => bytes.push(byte),
                }
            }
            _ if unit.starts_with("\\u{") => {
                let code = u32::from_str_radix(&unit[3..unit.len() - 1], 16).unwrap();
                let ch = char::from_u32(code).unwrap();
                bytes.extend(ch.encode_utf8(&mut [0; 4]).bytes());
            }
            _ => bytes.extend(unit.bytes()),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn escaped_text_has_nothing_raw_left_and_can_be_read_back(bytes in hostile_bytes()) {
        let escaped = escape(&bytes);
        prop_assert_eq!(first_deceptive(&escaped), None, "in {:?}", escaped);
        prop_assert_eq!(escaped.is_empty(), bytes.is_empty());
        prop_assert!(escaped.is_empty() || !escaped.trim().is_empty());
        prop_assert_eq!(unescape(&escaped), bytes, "escaped: {}", escaped);
    }

    #[test]
    fn fitted_text_keeps_to_the_width_and_is_never_empty(bytes in hostile_bytes(), width in 1_usize..40) {
        let escaped = escape(&bytes);
        let fitted = fit(&escaped, width);
        prop_assert!(columns(&fitted) <= width, "{} takes {} of {}", fitted, columns(&fitted), width);
        prop_assert_eq!(fitted.is_empty(), bytes.is_empty());
        prop_assert_eq!(first_deceptive(&fitted), None);
        let kept = fitted.strip_suffix(ELLIPSIS).unwrap_or(&fitted);
        prop_assert!(escaped.starts_with(kept), "{} is no beginning of {}", kept, escaped);
    }

    #[test]
    fn wrapped_text_keeps_to_the_width_and_loses_nothing_but_spaces(bytes in hostile_bytes(), width in 2_usize..40) {
        let escaped = escape(&bytes);
        let lines = wrap(&escaped, width);
        for line in &lines {
            prop_assert!(columns(line) <= width, "{} takes {} of {}", line, columns(line), width);
        }
        let without_spaces = |text: &str| text.replace(' ', "");
        prop_assert_eq!(without_spaces(&lines.concat()), without_spaces(&escaped));
    }
}

#[test]
fn every_kind_of_deceptive_character_has_its_escape() {
    let cases: &[(&[u8], &str)] = &[
        (b"plain name", "plain name"),
        (b"\x1b[31m", "\\x1b[31m"),
        (b"a\nb\tc\rd\0e\x7f", "a\\nb\\tc\\rd\\x00e\\x7f"),
        ("\u{85}\u{9b}".as_bytes(), "\\u{85}\\u{9b}"),
        ("\u{202e}gnp\u{2066}".as_bytes(), "\\u{202e}gnp\\u{2066}"),
        ("a\u{200b}b\u{2028}c\u{a0}d".as_bytes(), "a\\u{200b}b\\u{2028}c\\u{a0}d"),
        ("e\u{301}".as_bytes(), "e\\u{301}"),
        (b"\xff\xc3", "\\xff\\xc3"),
        ("Größe 日本".as_bytes(), "Größe 日本"),
        (b"   ", "\\x20 \\x20"),
        (b" ", "\\x20"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(escape(bytes), *expected, "{bytes:?}");
    }
}

#[test]
fn a_backslash_is_doubled_only_where_it_would_read_as_an_escape() {
    let cases = [
        (r"dev-disk-by\x2duuid.swap", r"dev-disk-by\x2duuid.swap"),
        (r"grep \.py$", r"grep \.py$"),
        (r"\", r"\"),
        (r"\\", r"\\\"),
        (r"C:\new", r"C:\\new"),
        (r"\x1b", r"\\x1b"),
        (r"\xff", r"\\xff"),
        (r"\xzz", r"\xzz"),
        (r"\u{202e}", r"\\u{202e}"),
        (r"\user", r"\user"),
        ("\\\u{202e}", r"\\\u{202e}"),
        ("\\ ", r"\\\x20"),
    ];
    for (text, expected) in cases {
        assert_eq!(escape_str(text), expected, "{text:?}");
    }
}

#[test]
fn an_escape_is_not_cut_in_half() {
    let escaped = escape(b"ab\x1bcd");
    assert_eq!(fit(&escaped, 8), "ab\\x1bcd");
    assert_eq!(fit(&escaped, 7), "ab\\x1b…");
    assert_eq!(fit(&escaped, 6), "ab…");
    assert_eq!(fit("日本語", 4), "日…");
    assert_eq!(fit("x", 0), "");
}

#[test]
fn text_wraps_at_spaces_and_breaks_words_that_are_too_long() {
    assert_eq!(wrap("one two three", 8), ["one two", "three"]);
    assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
    assert_eq!(wrap("", 10), [""]);
}
