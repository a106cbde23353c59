//! What happens, for one reader and without a daemon: the same core, with hooks that end with it.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use anyhow::Context as _;

use super::core::Core;
use super::describer::Describer;
use super::feed::{self, Subscription};
use super::inbox;
use super::notify::Manager;
use super::peer::Viewer;
use super::settings::{Flags, Plan, Settings};
use super::{NEEDS, attach};
use crate::kernel::{self, Btf, ExtraDevice};
use crate::model::happening::Happening;
use crate::probe::{Iterators, ProbeError};

/// What happens from now on.
pub struct Watching {
    subscription: Subscription,
    ended: std::sync::mpsc::Receiver<anyhow::Error>,
}

/// Attaches hooks of its own and begins to watch these devices.
///
/// # Errors
/// The kernel does not allow it, or there are no such devices.
pub fn watch(devices: Vec<ExtraDevice>) -> anyhow::Result<Watching> {
    let (ready, started) = channel();
    let (report, ended) = channel();
    std::thread::Builder::new()
        .name("core".to_owned())
        .spawn(move || {
            if let Err(error) = observe(devices, &ready) {
                // Whoever waits for either has gone otherwise.
                let _ = report.send(error);
            }
        })
        .context("cannot start a thread")?;
    match started.recv() {
        Ok(subscription) => Ok(Watching { subscription, ended }),
        Err(_) => Err(ended.recv().unwrap_or_else(|_| anyhow::anyhow!("the watcher ended without a word"))),
    }
}

fn observe(devices: Vec<ExtraDevice>, ready: &Sender<Subscription>) -> anyhow::Result<()> {
    let flags = Flags { devices, plan: Some(Plan::Auto), ..Flags::default() };
    let settings = Settings::unconfigured(flags)?;
    let devices = kernel::discover(Path::new("/"), &settings.devices)?;
    let btf = Btf::read(Btf::VMLINUX).map_err(ProbeError::from).context(NEEDS)?;
    let iterators = Iterators::load(&btf).context(NEEDS)?;
    let source = attach(&settings, None, &btf, &devices)?;
    anyhow::ensure!(source.is_some(), "without events there is nothing to watch; {NEEDS}");
    drop(btf);
    let (outbox, inbox) = inbox::pair().context("cannot make an eventfd")?;
    let describer = Describer::start(outbox).context("cannot start a thread")?;
    let mut core = Core::new(settings, devices, source, iterators, describer, None);
    core.take_events()?;
    // What is held already is no news.
    core.look(false)?;
    let (subscriber, subscription) = feed::subscribe(Viewer::everything());
    core.feed.add(subscriber);
    if ready.send(subscription).is_err() {
        return Ok(());
    }
    core.run(&inbox, None, &Manager::silent())
}

impl Watching {
    /// The next line of JSON, waiting for it. `None`: it is over; see [`Watching::end`].
    pub fn next_line(&mut self) -> Option<Vec<u8>> {
        use std::sync::atomic::Ordering;
        let missed = self.subscription.untold.missed.swap(0, Ordering::Relaxed);
        if missed > 0 {
            let line = Happening { what: "missed".to_owned(), count: Some(missed), ..Happening::default() };
            return feed::line(&line).map(Vec::from);
        }
        self.subscription.lines.blocking_recv().map(Vec::from)
    }

    /// Why it is over.
    ///
    /// # Errors
    /// The kernel refused something.
    pub fn end(self) -> anyhow::Result<()> {
        self.ended.recv().map_or(Ok(()), Err)
    }
}
