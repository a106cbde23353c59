//! `gpu-tracer run`: the always-on daemon.
//!
//! ```text
//!              ring ──▶ ┌──────── core ────────┐ ◀── orders ── server (HTTP over a unix socket)
//!  signals, watchdog ─▶ │ ledger, iterators    │ ──▶ lines ──▶ readers of /v1/events
//!                       └──────────┬───────────┘
//!                                  └─▶ describer (/proc, which may make a reader wait)
//! ```
//!
//! The core is one thread that owns everything and waits for nobody: events are taken in, a look is taken soon after
//! those that may change who refers to what ([`pace`]), files on their way out are looked at again every 100 ms, and
//! every answer gets a look of its own. Putting an answer together, reading `/proc` and writing to clients is done
//! elsewhere.

mod config;
mod core;
mod describer;
mod driver;
mod feed;
mod following;
mod http;
mod idle;
mod inbox;
mod judging;
mod lastly;
mod log;
mod looking;
mod memory;
mod metrics;
mod notify;
mod numbering;
mod pace;
mod peer;
mod pieces;
mod recollection;
mod recording;
mod sampler;
mod settings;
mod signals;
mod socket;
mod status;
mod stream;
mod tell;
mod watch;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

pub(crate) use self::peer::Peer;
pub use self::settings::{Flags, Plan, USUAL_SOCKET, USUAL_STATE_DIR};
pub use self::status::Status;
pub use self::watch::{Watching, watch};

use self::core::Core;
use self::describer::Describer;
use self::idle::IdleMemory;
use self::judging::Judge;
use self::lastly::Lastly;
use self::notify::Manager;
use self::sampler::Sampler;
use self::settings::Settings;
use self::signals::Signals;
use self::socket::Socket;
use crate::diagnose::Roles;
use crate::kernel::{self, Btf};
use crate::probe::events::{self, Options};
use crate::probe::{EventSource, Iterators, ProbeError};

/// Who plays which role on this host, by the configuration that the daemon goes by.
///
/// # Errors
/// The configuration cannot be used.
pub fn configured_roles(config: Option<&Path>) -> anyhow::Result<Roles> {
    Ok(config::read(config)?.roles())
}

/// Runs the daemon until it is asked to stop (SIGTERM, SIGINT). Must be called before other threads are started.
///
/// # Errors
/// Another daemon is running, the configuration cannot be used, or the kernel does not allow what it takes.
pub fn run(flags: Flags) -> anyhow::Result<()> {
    memory::be_modest();
    let settings = Settings::new(flags)?;
    let signals = Signals::take().context("cannot take signals")?;
    let manager = Manager::of_environment();
    let lastly = Lastly::open(&settings.state_dir)?;
    let (socket, listener) = Socket::bind(&settings.socket)?;
    let metrics = settings.metrics_listen.map(http::bind_metrics).transpose()?;

    let devices = kernel::discover(Path::new("/"), &settings.devices)?;
    let btf = Btf::read(Btf::VMLINUX).map_err(ProbeError::from).context(NEEDS)?;
    let iterators = Iterators::load(&btf).context(NEEDS)?;
    // Before the first look: what is opened in between is then seen twice and not missed.
    let pin_dir = Some(settings.pin_dir.clone());
    let source = attach(&settings, pin_dir, &btf, &devices)?;
    // Several MiB that nobody needs again.
    drop(btf);
    let (outbox, inbox) = inbox::pair().context("cannot make an eventfd")?;
    let describer = Describer::start(outbox.clone()).context("cannot start a thread")?;
    let (group, idle) = (settings.group.clone(), IdleMemory::open(&settings.state_dir));
    let every = settings.measure_memory.filter(|_| settings.retention.is_some());
    let sampler = Sampler::start(every, outbox.clone()).context("cannot start a thread")?;
    let judge = Judge::start(outbox.clone()).context("cannot start a thread")?;
    let mut core = Core::new(settings, devices, source, iterators, describer, Some(lastly));
    core.open_journal();
    core.sampler = sampler;
    if core.recorder.is_some() {
        core.judge = judge;
    }
    core.take_events()?;
    core.look(true)?;
    core.remember_being_alive();
    memory::give_back();
    http::start(listener, metrics, outbox, group, idle)?;
    log::info(&format!("ready on {}; {}", core.settings.socket.display(), core.in_a_sentence()));
    manager.tell(&format!("READY=1\nSTATUS={}", core.in_a_sentence()));

    let ended = core.run(&inbox, Some(&signals), &manager);
    manager.tell("STOPPING=1");
    core.remember_being_alive();
    core.keep(true);
    core.return_numbers();
    core.close_journal();
    drop(socket);
    ended
}

const NEEDS: &str = "the daemon looks at the kernel through BPF; `gpu-tracer doctor` says what is missing";

/// The hooks of the plan, if it has any.
fn attach(
    settings: &Settings,
    pin_dir: Option<PathBuf>,
    btf: &Btf,
    devices: &kernel::Devices,
) -> anyhow::Result<Option<EventSource>> {
    if settings.plan == Plan::Snapshot {
        return Ok(None);
    }
    let calls = settings.plan == Plan::Exhaustive;
    let driver = calls || matches!(settings.plan, Plan::Auto | Plan::Full);
    let mut options = Options { pin_dir, driver, calls, ..Options::default() };
    if let Some(bytes) = settings.ring_bytes {
        options.ring_bytes = bytes;
    }
    let attached = match EventSource::attach(btf, &devices.table, &options) {
        // Hooks that end with this process are better than none.
        Err(error @ ProbeError::Pin { .. }) => {
            log::warning(&format!(
                "hooks will not outlive this process, which leaves a gap when it is killed: {error}"
            ));
            options.pin_dir = None;
            EventSource::attach(btf, &devices.table, &options)
        }
        attached => attached,
    };
    match attached {
        Ok(source) => {
            driver::judge(settings.plan, &source.driver_state())?;
            if calls {
                driver::judge_calls(&source)?;
            }
            for hook in source.hooks().iter().filter(|hook| hook.works != kernel::Answer::Yes) {
                let why = hook.detail.as_deref().unwrap_or("this kernel does not have it");
                log::warning(&format!("no hook at {}: {why}", hook.hook));
            }
            Ok(Some(source))
        }
        Err(error @ ProbeError::Busy { .. }) => Err(error.into()),
        Err(error) if settings.plan == Plan::Auto => {
            log::warning(&format!("no events, only snapshots: {error}"));
            Ok(None)
        }
        Err(error) => Err(error).context("no events, which the plan demands"),
    }
}

/// Detaches the hooks that a daemon left in the BPF file system; says how many sets of them there were.
///
/// # Errors
/// A daemon is using them, or the configuration cannot be used.
pub fn unpin(flags: Flags) -> anyhow::Result<usize> {
    let settings = Settings::new(flags)?;
    Ok(events::unpin(&settings.pin_dir)?)
}
