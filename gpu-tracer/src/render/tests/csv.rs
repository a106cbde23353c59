use proptest::prelude::*;

use super::*;
use crate::model::report::HeldMemory;
use crate::render::tests::hostile;

/// A reader for what RFC 4180 says, strict about quotes.
fn read(csv: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut chars = csv.chars().peekable();
    let mut quoted = false;
    while let Some(ch) = chars.next() {
        match ch {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => field.push('"'),
            '"' if quoted || field.is_empty() => quoted = !quoted,
            '"' => panic!("a quote within an unquoted field: {csv:?}"),
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            ch => field.push(ch),
        }
    }
    assert!(!quoted && field.is_empty() && row.is_empty(), "unfinished: {csv:?}");
    rows
}

#[test]
fn formulas_and_quotes_are_made_harmless() {
    let cases: &[(&[u8], &str)] = &[
        (b"python3", "python3"),
        (b"=cmd()", "'=cmd()"),
        (b"=1,2", "\"'=1,2\""),
        (b"-rf", "'-rf"),
        (b"\t=x", "'\\t=x"),
        (b" =x", "\\x20=x"),
        (b"'quoted", "''quoted"),
        ("＝x".as_bytes(), "'＝x"),
        (b"say \"hi\"", "\"say \"\"hi\"\"\""),
        (b"a;b", "\"a;b\""),
        (b"two\nlines", "two\\nlines"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(field(bytes), *expected, "{bytes:?}");
    }
}

#[test]
fn memory_stands_once_per_gpu_and_none_of_it_is_lost() {
    let held = |device: &str, gpu| HeldDevice { device: device.to_owned(), gpu, ..HeldDevice::default() };
    let memory = |gpu, mib| HeldMemory { gpu, mib, source: "nvml".to_owned() };
    let holder = Holder {
        devices: vec![
            held("nvidia0", Some(0)),
            held("nvidiactl", None),
            held("nvidia-caps/nvidia-cap1", Some(0)),
        ],
        memory: vec![memory(0, 7), memory(3, 9)],
        ..Holder::default()
    };
    let rows: Vec<_> =
        rows(&holder).into_iter().map(|(device, mib)| (device.device, device.gpu, mib)).collect();
    let expected = [
        ("nvidia0", Some(0), Some(7)),
        ("nvidiactl", None, None),
        ("nvidia-caps/nvidia-cap1", Some(0), None),
        ("", Some(3), Some(9)),
    ];
    assert_eq!(rows, expected.map(|(device, gpu, mib)| (device.to_owned(), gpu, mib)));
    assert_eq!(super::rows(&Holder::default()).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_one_harmless_field(bytes in hostile::hostile_bytes()) {
        let line = format!("{},end\n", field(&bytes));
        prop_assert_eq!(hostile::first_deceptive(line.trim_end_matches('\n')), None, "{}", line);
        let rows = read(&line);
        prop_assert_eq!(rows.len(), 1);
        prop_assert_eq!(rows[0].len(), 2, "{}", line);
        let text = &rows[0][0];
        prop_assert!(!text.starts_with(['=', '+', '-', '@', '\t', '\r']), "{}", text);
        prop_assert_eq!(text.strip_prefix('\'').unwrap_or(text), escape(&bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_report_has_all_its_holders_and_the_same_columns_in_every_row(report in hostile::report()) {
        let mut out = Vec::new();
        write(&report, true, &mut out).unwrap();
        let rows = read(&String::from_utf8(out).unwrap());
        prop_assert_eq!(&rows[0], &COLUMNS.map(str::to_owned));
        for row in &rows {
            prop_assert_eq!(row.len(), COLUMNS.len());
        }
        let mut pids: Vec<u32> = rows[1..].iter().map(|row| row[2].parse().unwrap()).collect();
        let mut expected: Vec<u32> = report.holders.iter().map(|holder| holder.pid).collect();
        for pids in [&mut pids, &mut expected] {
            pids.sort_unstable();
            pids.dedup();
        }
        prop_assert_eq!(pids, expected);
    }
}
