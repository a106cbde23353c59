//! Asking the daemon: HTTP over its unix socket, with short deadlines, and nothing that could hang.

use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{Question, percent};
use crate::daemon::{Peer, Status, USUAL_SOCKET};
use crate::model::report::{Report, SCHEMA};

/// To be let in.
const CONNECT: Duration = Duration::from_millis(300);
/// For the whole answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Longer than any answer: some kilobytes for each of ten thousand holders.
const LONGEST_ANSWER: u64 = 256 << 20;
/// The head of an answer.
const LONGEST_HEAD: usize = 16 << 10;

/// Why the daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It was not to be asked.
    #[error("the daemon is not to be asked")]
    Standalone,
    /// It is not there, or does not answer in time.
    #[error("no daemon answers at {path}: {source}")]
    Silent {
        /// Its socket.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Whoever answers is no daemon of this host's root, or speaks another language.
    #[error("what answers at {path} is no daemon that can be trusted: {problem}")]
    Foreign {
        /// Its socket.
        path: String,
        /// In which way.
        problem: String,
    },
    /// It does not know the devices asked about.
    #[error("{0}")]
    OtherDevices(String),
    /// The question is wrong.
    #[error("{0}")]
    Refused(String),
}

/// The daemon's report.
///
/// # Errors
/// See [`AskError`]: with all but [`AskError::Refused`] the question can be answered without it.
pub(super) fn holders(question: &Question) -> Result<Report, AskError> {
    if question.standalone {
        return Err(AskError::Standalone);
    }
    let path = question.socket.as_deref().unwrap_or(Path::new(USUAL_SOCKET));
    let deadline = Instant::now() + ANSWER;
    let mut query: Vec<String> =
        question.selectors.iter().map(|gpu| format!("gpu={}", percent::encode(gpu))).collect();
    query.extend(
        question.devices.iter().map(|device| {
            format!("device={}", percent::encode(&format!("{}={}", device.number, device.name)))
        }),
    );
    let target = format!("/v1/holders?{}", query.join("&"));
    let (status, mut answer) = ask(path, &Request::get(&target), Some(deadline))?;
    let silent = |source| AskError::Silent { path: path.display().to_string(), source };
    let foreign = |problem: String| AskError::Foreign { path: path.display().to_string(), problem };
    let mut text = Vec::new();
    answer.read_to_end(&mut text).map_err(silent)?;
    match status {
        200 => {
            let report: Report = serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))?;
            if report.schema != SCHEMA {
                return Err(foreign(format!("its answers are of schema {}", report.schema)));
            }
            Ok(report)
        }
        400 => Err(AskError::Refused(problem(&text))),
        409 => Err(AskError::OtherDevices(problem(&text))),
        status => Err(foreign(format!("status {status}: {}", problem(&text)))),
    }
}

/// How the daemon is doing, if there is one that tells.
pub(super) fn status() -> Option<Status> {
    let deadline = Instant::now() + ANSWER;
    let (status, mut answer) =
        ask(Path::new(USUAL_SOCKET), &Request::get("/v1/status"), Some(deadline)).ok()?;
    let mut text = Vec::new();
    answer.read_to_end(&mut text).ok()?;
    (status == 200).then(|| serde_json::from_slice(&text).ok())?
}

/// Tells the daemon what idle GPUs show: `(index, MiB)`.
///
/// # Errors
/// See [`AskError`]; nothing depends on it.
pub(super) fn tell_idle(question: &Question, gpus: &[(u32, u64)]) -> Result<(), AskError> {
    let path = question.socket.as_deref().unwrap_or(Path::new(USUAL_SOCKET));
    let gpus: Vec<_> = gpus.iter().map(|(gpu, mib)| serde_json::json!({"gpu": gpu, "mib": mib})).collect();
    let body = serde_json::json!({ "gpus": gpus }).to_string();
    let request = Request { method: "POST", target: "/v1/idle", body: &body };
    let (status, _) = ask(path, &request, Some(Instant::now() + ANSWER))?;
    match status {
        200..300 => Ok(()),
        status => Err(AskError::Foreign {
            path: path.display().to_string(),
            problem: format!("status {status} for what idle GPUs show"),
        }),
    }
}

/// The lines of `/v1/events`, from now on. Reading them waits as long as nothing happens.
///
/// # Errors
/// [`AskError::Silent`] if no daemon answers, [`AskError::Foreign`] if it does not give events.
pub fn stream(socket: Option<&Path>) -> Result<impl BufRead + use<>, AskError> {
    let path = socket.unwrap_or(Path::new(USUAL_SOCKET));
    let (status, answer) = ask(path, &Request::get("/v1/events"), None)?;
    if status != 200 {
        let problem = format!("status {status}");
        return Err(AskError::Foreign { path: path.display().to_string(), problem });
    }
    Ok(answer)
}

fn problem(text: &[u8]) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(text).ok();
    let error = document.as_ref().and_then(|document| document.get("error")?.as_str());
    error.map_or_else(|| String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned(), str::to_owned)
}

/// What is asked or told.
struct Request<'a> {
    method: &'static str,
    target: &'a str,
    body: &'a str,
}

impl<'a> Request<'a> {
    fn get(target: &'a str) -> Self {
        Self { method: "GET", target, body: "" }
    }

    fn text(&self) -> String {
        let Self { method, target, body } = self;
        let length =
            if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        format!("{method} {target} HTTP/1.0\r\nHost: localhost\r\n{length}\r\n{body}")
    }
}

/// Status and body. HTTP/1.0, so that the body is what comes until the end.
fn ask(
    path: &Path,
    request: &Request<'_>,
    until: Option<Instant>,
) -> Result<(u16, impl BufRead + use<>), AskError> {
    let shown = path.display().to_string();
    let silent = |source| AskError::Silent { path: shown.clone(), source };
    let foreign = |problem: &str| AskError::Foreign { path: shown.clone(), problem: problem.to_owned() };
    let stream = connect_to(path).map_err(silent)?;
    demand_trust(&stream).map_err(|problem| foreign(&problem))?;
    let head_until = until.unwrap_or_else(|| Instant::now() + ANSWER);
    (&stream).write_all(request.text().as_bytes()).map_err(silent)?;
    let mut reader = BufReader::new(Patient { stream, until: Some(head_until) }.take(LONGEST_HEAD as u64));
    let status = head(&mut reader).map_err(silent)?.ok_or_else(|| foreign("it does not speak HTTP"))?;
    let limit = if until.is_some() { LONGEST_ANSWER } else { u64::MAX };
    reader.get_mut().set_limit(limit);
    reader.get_mut().get_mut().until = until;
    if until.is_none() {
        reader.get_ref().get_ref().stream.set_read_timeout(None).map_err(silent)?;
    }
    Ok((status, reader))
}

/// Reads up to the body; the status, if it is HTTP.
fn head(reader: &mut impl BufRead) -> io::Result<Option<u16>> {
    let mut status = None;
    loop {
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line)?;
        let line = String::from_utf8_lossy(&line);
        match line.trim_end() {
            "" => return Ok(status),
            first if status.is_none() => {
                let mut words = first.split(' ');
                if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
                    return Ok(None);
                }
                status = words.next().and_then(|code| code.parse().ok());
            }
            _ => {}
        }
    }
}

/// Connects, waiting for a place in the daemon's queue for a short time only.
fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    // On a unix socket this bounds connect as well.
    stream.set_write_timeout(Some(CONNECT))?;
    connect(&stream, &address)?;
    Ok(stream)
}

/// Whoever can make a socket in that place can tell anything: only root is believed, or oneself.
fn demand_trust(stream: &UnixStream) -> Result<(), String> {
    let Peer { uid, .. } = Peer::of(stream).map_err(|error| error.to_string())?;
    if uid == 0 || uid == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(format!("it belongs to user {uid}"))
    }
}

/// Reads until a moment, and not beyond.
struct Patient {
    stream: UnixStream,
    until: Option<Instant>,
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn question(socket: &Path) -> Question {
        Question { socket: Some(socket.to_owned()), ..Question::default() }
    }

    /// Answers one question with these bytes; gives what was asked.
    fn answering(socket: &Path, answer: &'static [u8]) -> std::thread::JoinHandle<String> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![0; 4096];
            let read = stream.read(&mut asked).unwrap();
            stream.write_all(answer).unwrap();
            String::from_utf8_lossy(&asked[..read]).lines().next().unwrap_or_default().to_owned()
        })
    }

    #[test]
    fn nobody_there_is_silence_and_takes_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let error = holders(&question(&dir.path().join("none"))).unwrap_err();
        assert!(matches!(error, AskError::Silent { .. }), "{error:?}");
        assert!(begun.elapsed() < CONNECT, "{:?}", begun.elapsed());
    }

    #[test]
    fn one_that_takes_the_question_and_never_answers_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("mute");
        let _listener = UnixListener::bind(&socket).unwrap();
        let begun = Instant::now();
        let error = holders(&question(&socket)).unwrap_err();
        assert!(matches!(error, AskError::Silent { .. }), "{error:?}");
        assert!(begun.elapsed() < 2 * ANSWER, "{:?}", begun.elapsed());
    }

    #[test]
    fn what_is_asked_arrives_and_a_refusal_is_told_in_its_own_words() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("refusing");
        let answer =
            b"HTTP/1.0 400 Bad Request\r\ncontent-type: application/json\r\n\r\n{\"error\":\"no GPU 9\"}";
        let daemon = answering(&socket, answer);
        let mut question = question(&socket);
        question.selectors = vec!["9".to_owned()];
        question.devices = vec!["1:5=nvidia0".parse().unwrap()];
        let error = holders(&question).unwrap_err();
        assert!(matches!(&error, AskError::Refused(problem) if problem == "no GPU 9"), "{error:?}");
        assert_eq!(daemon.join().unwrap(), "GET /v1/holders?gpu=9&device=1%3A5%3Dnvidia0 HTTP/1.0");
    }

    #[test]
    fn what_is_no_report_is_not_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        for (name, answer) in [
            ("ssh", &b"SSH-2.0-OpenSSH\r\n\r\n"[..]),
            ("cut", b"HTTP/1.0 200 OK\r\n\r\n{\"schema\":1,"),
            ("other", b"HTTP/1.0 500 Oops\r\n\r\n"),
        ] {
            let socket = dir.path().join(name);
            let daemon = answering(&socket, answer);
            let error = holders(&question(&socket)).unwrap_err();
            assert!(matches!(error, AskError::Foreign { .. }), "{name}: {error:?}");
            daemon.join().unwrap();
        }
    }
}
