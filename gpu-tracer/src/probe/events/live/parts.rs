//! Processes to be told of: this test binary, started again to play a part.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Read},
    os::fd::AsRawFd,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Barrier,
    thread,
    time::Instant,
};

use super::attach;
use crate::probe::events::Options;

const NODE: &str = "/dev/full";
const PART: &str = "GPU_TRACER_TEST_EVENTS_PART";
const PIN_DIR: &str = "GPU_TRACER_TEST_PIN_DIR";

/// Opens that the storm makes.
pub(super) const STORM: u64 = 20_000;

/// The part.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// One file under descriptors 500 to 799 and one more.
    Descriptors,
    /// One file in the table that its threads share; a thread with a table of its own and a second file in it.
    Tables,
    /// [`STORM`] opens one after the other, then it ends.
    Storm,
    /// Has the hooks, reads what is there, and then nothing more.
    Owner,
}

const PARTS: [Part; 4] = [Part::Descriptors, Part::Tables, Part::Storm, Part::Owner];

/// A process that plays a part until its standard input is closed.
pub(super) struct Playing(Child);

impl Playing {
    /// Starts it and waits until it has done what it is to do.
    pub(super) fn start(part: Part, pin_dir: &Path) -> Self {
        let name = module_path!().split_once("::").expect("in a crate").1;
        let mut child = Command::new(env::current_exe().expect("a path"))
            .args(["--exact", &format!("{name}::plays_its_part"), "--nocapture", "--test-threads=1"])
            .env(PART, format!("{part:?}"))
            .env(PIN_DIR, pin_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert!(
            lines.any(|line| line.expect("text").ends_with("ready")),
            "{part:?} ended before it was ready"
        );
        Self(child)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// SIGKILL, and the end.
    pub(super) fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("waited for");
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: what the other process does.
#[test]
fn plays_its_part() {
    let Some(part) =
        env::var(PART).ok().and_then(|name| PARTS.into_iter().find(|part| format!("{part:?}") == name))
    else {
        return;
    };
    let open = || File::open(NODE).expect(NODE);
    let ready = || println!("\nready");
    match part {
        Part::Descriptors => {
            let file = open();
            for descriptor in 500..800 {
                // SAFETY: nothing here uses these numbers.
                assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), descriptor) }, descriptor);
            }
            ready();
            wait();
        }
        Part::Tables => {
            let _shared = open();
            let barrier = Barrier::new(3);
            thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    thread::park();
                });
                scope.spawn(|| {
                    // SAFETY: gives this thread a copy of the table; touches no memory.
                    assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                    let _own = open();
                    barrier.wait();
                    thread::park();
                });
                barrier.wait();
                ready();
                wait();
            });
        }
        Part::Storm => {
            (0..STORM).for_each(|_| drop(open()));
            ready();
        }
        Part::Owner => {
            let pin_dir = env::var_os(PIN_DIR).map(Into::into);
            let mut source = attach(&Options { pin_dir, ..Options::default() });
            source.poll(Instant::now()).expect("poll");
            ready();
            wait();
        }
    }
}

fn wait() {
    let _ = std::io::stdin().read(&mut [0]);
}
