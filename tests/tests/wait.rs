//! Waiting for the release.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpu_tracer_tests::harness::{Daemon, Device, Play, Tracer, eventually};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_device_that_nobody_holds_is_not_waited_for() {
    let device = Device::nobodys();
    let waited = Tracer::new(&device).run("wait", &["0", "--timeout", "20s"]);
    assert_eq!((waited.status, waited.out.len()), (0, 0), "{}", waited.err);
}

#[test]
fn the_timeout_ends_with_the_status_and_words_of_why() {
    let play = Play::stage("plain", &[]);
    let waited = Tracer::new(&play.device).run("wait", &["0", "--timeout", "300ms"]);
    let out = String::from_utf8_lossy(&waited.out).into_owned();
    assert_eq!(waited.status, 1, "{out}\n{}", waited.err);
    assert!(out.contains(&play.truth.holders[0].pid.to_string()), "{out}");
    assert!(waited.err.contains("waiting: GPU 0 is held"), "{}", waited.err);
}

#[test]
fn waiting_ends_when_the_last_handle_is_released() {
    let mut play = Play::stage_on(Device::nobodys(), "in-flight", &[]);
    let mut command = Tracer::new(&play.device).subcommand("wait", &["0", "--timeout", "60s"]);
    let mut waiting = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    // Received, then closed.
    play.next("");
    assert_eq!(waiting.try_wait().expect("ours"), None, "received is not released");
    play.next("");
    let status =
        eventually("the end of the waiting", Duration::from_secs(30), || waiting.try_wait().expect("ours"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn memory_cannot_be_waited_for_where_nobody_tells_how_much_is_used() {
    let device = Device::nobodys();
    let waited = Tracer::new(&device).run("wait", &["0", "--below", "1GiB", "--timeout", "5s"]);
    if waited.status == 2 {
        assert!(waited.err.contains("NVML"), "{}", waited.err);
    } else {
        // NVML is there, and does not know of a made-up GPU.
        assert_eq!(waited.status, 3, "{}", waited.err);
    }
}

#[test]
fn what_a_daemon_tells_ends_the_waiting_and_it_is_asked_only_when_that_may_be() {
    let device = Device::nobodys();
    let free = Tracer::new(&device).holders().text;
    let play = Play::stage_on(device, "plain", &[]);
    let tracer = Tracer::new(&play.device);
    let held = tracer.holders().text;
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("d.sock");
    let daemon = FakeDaemon::listen(&socket, held, free);
    let mut command = tracer.asking(&socket, "wait", &["0", "--timeout", "60s"]);
    let mut waiting = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    eventually("a question", SOON, || daemon.asked().first().copied());
    // Time in which somebody who asks again and again would have done so.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(daemon.asked().len(), 1, "nothing has happened");
    daemon.tell("opened");
    daemon.release();
    let released = Instant::now();
    let next = eventually("a second question", SOON, || daemon.asked().get(1).copied());
    let after = next.saturating_duration_since(released);
    assert!(after < Duration::from_millis(450), "asked only {after:?} after the release");
    let status = eventually("the end of the waiting", SOON, || waiting.try_wait().expect("ours"));
    // The last question is asked together with NVML.
    assert_eq!((status.code(), daemon.asked().len()), (Some(0), 3));
}

#[test]
fn with_a_daemon_waiting_ends_soon_after_the_release_and_takes_few_questions() {
    let device = Device::nobodys();
    let daemon = Daemon::start(&device);
    let play = Play::stage_on(device, "plain", &[]);
    let answers = || daemon.status()["counts"]["answers"].as_u64().expect("a number");
    let before = answers();
    let tracer = Tracer::new(&play.device);
    let mut command = tracer.asking(&daemon.socket(), "wait", &["0", "--timeout", "60s"]);
    let begun = Instant::now();
    let mut waiting = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    eventually("a question", SOON, || (answers() > before).then_some(()));
    gpu_tracer_tests::sys::process::kill(play.truth.holders[0].pid, libc::SIGKILL).expect("it lives");
    let killed = Instant::now();
    let status = eventually("the end of the waiting", SOON, || waiting.try_wait().expect("ours"));
    let (took, asked) = (killed.elapsed(), answers() - before);
    println!("waiting ended {took:?} after SIGKILL, with {asked} questions");
    assert_eq!(status.code(), Some(0));
    // One when it begins, one for each sign of a release (closed, detached, released), two at the end, one a second.
    assert!(asked <= 7 + begun.elapsed().as_secs(), "{asked} questions");
}

/// Somebody who speaks as a daemon does and counts how often it is asked.
struct FakeDaemon {
    asked: Arc<Mutex<Vec<Instant>>>,
    released: Arc<AtomicBool>,
    listeners: Arc<Mutex<Vec<UnixStream>>>,
}

impl FakeDaemon {
    fn listen(socket: &Path, held: String, free: String) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let daemon = Self { asked: Arc::default(), released: Arc::default(), listeners: Arc::default() };
        let (asked, released) = (Arc::clone(&daemon.asked), Arc::clone(&daemon.released));
        let listeners = Arc::clone(&daemon.listeners);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).expect("a question");
                write!(stream, "HTTP/1.0 200 OK\r\n\r\n").expect("it listens");
                if line.starts_with("GET /v1/events") {
                    writeln!(stream, r#"{{"at":"","what":"listening"}}"#).expect("it listens");
                    listeners.lock().expect("unharmed").push(stream);
                    continue;
                }
                asked.lock().expect("unharmed").push(Instant::now());
                let report = if released.load(Ordering::SeqCst) { &free } else { &held };
                stream.write_all(report.as_bytes()).expect("it listens");
            }
        });
        daemon
    }

    fn asked(&self) -> Vec<Instant> {
        self.asked.lock().expect("unharmed").clone()
    }

    fn tell(&self, what: &str) {
        for mut stream in self.listeners.lock().expect("unharmed").iter() {
            writeln!(stream, r#"{{"at":"","what":"{what}","gpu":0}}"#).expect("it listens");
        }
    }

    fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        self.tell("released");
    }
}
