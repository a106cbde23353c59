//! The memory table of the stand-in driver.
//!
//! Lines of words, in any order, all numbers decimal; empty lines and lines that begin with `#` say nothing:
//!
//! ```text
//! gpu INDEX used MIB total MIB
//! client GPU PID MIB
//! ```
//!
//! `GPU` and `INDEX` are NVML's index. A client is listed as a compute process. A line that is neither makes the whole
//! table an error, so that a mistake in the driver cannot pass as "no memory in use".

use std::collections::BTreeMap;

/// Memory of one GPU, MiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Used.
    pub used: u64,
    /// Installed.
    pub total: u64,
    /// PID and MiB of every client, in the order of the table.
    pub clients: Vec<(u32, u64)>,
}

/// Reads a table; the error is the line that is none.
///
/// # Errors
///
/// The first line that is neither form, or a client of a GPU without a `gpu` line.
pub fn parse(text: &str) -> Result<BTreeMap<u32, Row>, String> {
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    let mut clients = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["gpu", index, "used", used, "total", total] => {
                let row = Row { used: number(used, line)?, total: number(total, line)?, clients: Vec::new() };
                rows.insert(number(index, line)?, row);
            }
            ["client", gpu, pid, mib] => {
                clients.push((
                    number::<u32>(gpu, line)?,
                    number::<u32>(pid, line)?,
                    number::<u64>(mib, line)?,
                    line,
                ));
            }
            _ => return Err(line.to_owned()),
        }
    }
    for (gpu, pid, mib, line) in clients {
        rows.get_mut(&gpu).ok_or_else(|| line.to_owned())?.clients.push((pid, mib));
    }
    Ok(rows)
}

fn number<T: std::str::FromStr>(word: &str, line: &str) -> Result<T, String> {
    word.parse().map_err(|_| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_belong_to_their_gpu_whatever_the_order() {
        let text = "# stand-in\nclient 4 430 93690\ngpu 4 used 93699 total 97871\n\ngpu 0 used 1 total 97871\nclient 4 7 9\n";
        let rows = parse(text).expect("it is a table");
        assert_eq!(rows[&4], Row { used: 93_699, total: 97_871, clients: vec![(430, 93_690), (7, 9)] });
        assert_eq!(rows[&0].clients, []);
    }

    #[test]
    fn a_line_that_is_none_is_an_error_and_not_nothing() {
        for wrong in [
            "gpu 0 used x total 1",
            "gpu 0 used 1",
            "client 0 1",
            "client 0 1 5",
            "gpu -1 used 1 total 1",
            "hello",
        ] {
            assert_eq!(parse(wrong), Err(wrong.to_owned()));
        }
    }
}
