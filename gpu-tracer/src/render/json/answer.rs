//! A report on one line, as a daemon gives it: byte for byte what [`write_line`](super::write_line) writes, in pieces.
//!
//! Of ten thousand open files nearly all that is written is the same from one to the next, and writing each of their 140,000
//! members by itself took a quarter of the time of an answer. Here they are written by hand, and what is the same as before
//! is copied.

use std::io;
use std::sync::Arc;

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Serializer};

use super::Printable;
use crate::model::report::{FileReport, Opener, Report};

/// Bytes from which what has been written is given away. Of an answer of megabytes there is then hardly ever more than a few of
/// these in memory, whoever reads it has the first while the last is being written, and none is so long that the allocator
/// would ask the kernel for it each time.
const PIECE: usize = 64 << 10;
/// Left in a piece for the file that fills it.
const ROOM: usize = 1 << 10;

/// The whole report, piece by piece.
///
/// # Errors
/// As for [`write`](super::write); what has been given away until then is no document.
pub fn report(report: &Report, give: impl FnMut(Vec<u8>)) -> io::Result<()> {
    let Report { cost, gpus, files, holders, .. } = report;
    let mut line = Line::begin(report, give)?;
    line.member("cost", cost)?;
    line.member("gpus", gpus)?;
    line.files(files)?;
    line.member("holders", holders)?;
    line.end();
    Ok(())
}

/// The part of it that is about open files.
///
/// # Errors
/// As for [`report`].
pub fn files(report: &Report, give: impl FnMut(Vec<u8>)) -> io::Result<()> {
    let mut line = Line::begin(report, give)?;
    line.files(&report.files)?;
    line.end();
    Ok(())
}

/// An object on one line.
struct Line<G> {
    text: Vec<u8>,
    /// Is there a member already?
    begun: bool,
    give: G,
}

impl<G: FnMut(Vec<u8>)> Line<G> {
    /// With what every answer begins with.
    fn begin(report: &Report, give: G) -> io::Result<Self> {
        let Report { schema, taken_at, boot_id, plan, coverage, .. } = report;
        let mut text = Vec::with_capacity(PIECE);
        text.push(b'{');
        let mut line = Self { text, begun: false, give };
        line.member("schema", schema)?;
        line.member("taken_at", taken_at)?;
        line.member("boot_id", boot_id)?;
        line.member("plan", plan)?;
        line.member("coverage", coverage)?;
        Ok(line)
    }

    fn name(&mut self, name: &str) {
        let begun = std::mem::replace(&mut self.begun, true);
        self.text.extend_from_slice(if begun { b",\"" } else { b"\"" });
        self.text.extend_from_slice(name.as_bytes());
        self.text.extend_from_slice(b"\":");
    }

    fn member(&mut self, name: &str, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
        self.name(name);
        append(value, &mut self.text)
    }

    fn files(&mut self, files: &[FileReport]) -> io::Result<()> {
        self.name("files");
        self.text.push(b'[');
        let mut before = Before::default();
        for (at, file) in files.iter().enumerate() {
            if at > 0 {
                self.text.push(b',');
            }
            before.file(file, &mut self.text)?;
            if self.text.len() >= PIECE - ROOM {
                (self.give)(std::mem::replace(&mut self.text, Vec::with_capacity(PIECE)));
            }
        }
        self.text.push(b']');
        Ok(())
    }

    fn end(mut self) {
        self.text.extend_from_slice(b"}\n");
        (self.give)(self.text);
    }
}

fn append(value: &(impl Serialize + ?Sized), out: &mut Vec<u8>) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Printable(CompactFormatter)))?;
    Ok(())
}

/// What was written of the file before.
#[derive(Default)]
struct Before<'a> {
    /// Of this file: from its device to its state.
    place: Option<&'a FileReport>,
    place_text: Vec<u8>,
    opener: Option<&'a Opener>,
    opener_text: Vec<u8>,
}

impl<'a> Before<'a> {
    fn file(&mut self, file: &'a FileReport, out: &mut Vec<u8>) -> io::Result<()> {
        // Named one by one, so that a new member is not forgotten here.
        let FileReport {
            id,
            device: _,
            gpu: _,
            state: _,
            since,
            for_ms,
            task,
            references,
            unexplained,
            driver_pins,
            opened_at,
            opened_exact,
            opener,
        } = file;
        out.extend_from_slice(b"{\"id\":");
        number(*id, out);
        self.place(file)?;
        out.extend_from_slice(&self.place_text);
        match since {
            Some(since) => {
                out.push(b'"');
                out.extend_from_slice(&since.text());
                out.push(b'"');
            }
            None => out.extend_from_slice(b"null"),
        }
        if let Some(for_ms) = for_ms {
            out.extend_from_slice(b",\"for_ms\":");
            number(*for_ms, out);
        }
        if let Some(task) = task {
            out.extend_from_slice(b",\"task\":");
            append(task, out)?;
        }
        out.extend_from_slice(b",\"references\":");
        match references {
            Some(references) => number(*references, out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"unexplained\":");
        number(*unexplained, out);
        out.extend_from_slice(b",\"driver_pins\":");
        number(*driver_pins, out);
        match opened_at {
            Some(opened_at) => {
                out.extend_from_slice(b",\"opened_at\":\"");
                out.extend_from_slice(&opened_at.text());
                out.push(b'"');
            }
            None => out.extend_from_slice(b",\"opened_at\":null"),
        }
        out.extend_from_slice(if *opened_exact {
            b",\"opened_exact\":true,\"opener\":"
        } else {
            b",\"opened_exact\":false,\"opener\":"
        });
        match opener {
            Some(opener) => self.opener(opener, out)?,
            None => out.extend_from_slice(b"null"),
        }
        out.push(b'}');
        Ok(())
    }

    /// Brings `place_text` up to date: device, GPU and state.
    fn place(&mut self, file: &'a FileReport) -> io::Result<()> {
        let same = |last: &FileReport| {
            (last.gpu, &last.device, &last.state) == (file.gpu, &file.device, &file.state)
        };
        if !self.place.replace(file).is_some_and(same) {
            let text = &mut self.place_text;
            text.clear();
            text.extend_from_slice(b",\"device\":");
            append(&file.device, text)?;
            text.extend_from_slice(b",\"gpu\":");
            append(&file.gpu, text)?;
            text.extend_from_slice(b",\"state\":");
            append(&file.state, text)?;
            text.extend_from_slice(b",\"since\":");
        }
        Ok(())
    }

    fn opener(&mut self, opener: &'a Opener, out: &mut Vec<u8>) -> io::Result<()> {
        let same = |last: &Opener| {
            // Shared texts are compared by where they are: looking into them would cost as much as it saves.
            let texts =
                Arc::ptr_eq(&last.comm.0, &opener.comm.0) && Arc::ptr_eq(&last.cmdline.0, &opener.cmdline.0);
            texts && (last.pid, last.start_ns, last.alive) == (opener.pid, opener.start_ns, opener.alive)
        };
        if !self.opener.replace(opener).is_some_and(same) {
            self.opener_text.clear();
            append(opener, &mut self.opener_text)?;
        }
        out.extend_from_slice(&self.opener_text);
        Ok(())
    }
}

fn number(number: u64, out: &mut Vec<u8>) {
    const MOST: usize = "18446744073709551615".len();
    let (mut digits, mut at, mut left) = ([0; MOST], MOST, number);
    loop {
        at -= 1;
        // A digit.
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
