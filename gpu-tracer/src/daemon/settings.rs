//! What the daemon was told: the command line, the configuration file for what that leaves open, and what is usual.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::config::{self, Config};
use super::peer::{self, Group};
use crate::diagnose::Roles;
use crate::journal::Retention;
use crate::kernel::ExtraDevice;

/// Where the daemon usually listens.
pub const USUAL_SOCKET: &str = "/run/gpu-tracer/gpu-tracer.sock";
/// Where the daemon usually keeps what outlives it.
pub const USUAL_STATE_DIR: &str = "/var/lib/gpu-tracer";
const USUAL_PIN_DIR: &str = "/sys/fs/bpf/gpu-tracer";
const USUAL_GROUP: &str = "gpu-tracer";

/// Where facts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plan {
    /// The best that the kernel and the driver allow: `full`, `lean` or `snapshot`.
    #[default]
    Auto,
    /// Lean, and kprobes at the driver's own open and release.
    Full,
    /// Tracepoints, device nodes asked for, and snapshots.
    Lean,
    /// The best, and every system call of the host looked at: what is closed, mapped and handed over is told at once.
    Exhaustive,
    /// Snapshots only.
    Snapshot,
}

impl std::str::FromStr for Plan {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "full" => Ok(Self::Full),
            "lean" => Ok(Self::Lean),
            "snapshot" => Ok(Self::Snapshot),
            "exhaustive" => Ok(Self::Exhaustive),
            other => {
                anyhow::bail!("there is no plan {other:?}: use auto, full, lean, exhaustive or snapshot")
            }
        }
    }
}

/// What stands on the command line.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--socket`
    pub socket: Option<PathBuf>,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--pin-dir`
    pub pin_dir: Option<PathBuf>,
    /// `--metrics-listen`
    pub metrics_listen: Option<SocketAddr>,
    /// `--plan`
    pub plan: Option<Plan>,
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--device`
    pub devices: Vec<ExtraDevice>,
}

/// What holds.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    flags: Flags,
    config: Config,
    pub(super) socket: PathBuf,
    pub(super) state_dir: PathBuf,
    pub(super) pin_dir: PathBuf,
    pub(super) metrics_listen: Option<SocketAddr>,
    pub(super) plan: Plan,
    /// Group whose members see everything, if it exists here.
    pub(super) group: Group,
    pub(super) devices: Vec<ExtraDevice>,
    pub(super) ring_bytes: Option<u32>,
    /// How much history is kept; `None`: none.
    pub(super) retention: Option<Retention>,
    /// Between measurements of memory; `None`: it is not measured.
    pub(super) measure_memory: Option<Duration>,
    pub(super) roles: Arc<Roles>,
}

impl Settings {
    /// Reads the configuration. Errors: it cannot be used.
    pub(super) fn new(flags: Flags) -> anyhow::Result<Self> {
        let config = config::read(flags.config.as_deref())?;
        Self::of(flags, config)
    }

    /// Without a configuration file.
    pub(super) fn unconfigured(flags: Flags) -> anyhow::Result<Self> {
        Self::of(flags, Config::default())
    }

    fn of(flags: Flags, config: Config) -> anyhow::Result<Self> {
        let path = |flag: &Option<PathBuf>, configured: &Option<PathBuf>, usual: &str| {
            flag.clone().or_else(|| configured.clone()).unwrap_or_else(|| usual.into())
        };
        let metrics_listen = match (&flags.metrics_listen, &config.metrics_listen) {
            (Some(address), _) => Some(*address),
            (None, Some(text)) => {
                Some(text.parse().with_context(|| format!("metrics-listen = {text:?} is no ADDRESS:PORT"))?)
            }
            (None, None) => None,
        };
        let plan = match (flags.plan, &config.plan) {
            (Some(plan), _) => plan,
            (None, Some(name)) => name.parse().context("in the configuration")?,
            (None, None) => Plan::default(),
        };
        let devices = if flags.devices.is_empty() {
            let texts = config.devices.iter().flatten();
            texts
                .map(|text| text.parse())
                .collect::<Result<_, _>>()
                .context("devices in the configuration")?
        } else {
            flags.devices.clone()
        };
        Ok(Self {
            socket: path(&flags.socket, &config.socket, USUAL_SOCKET),
            state_dir: path(&flags.state_dir, &config.state_dir, USUAL_STATE_DIR),
            pin_dir: path(&flags.pin_dir, &config.pin_dir, USUAL_PIN_DIR),
            metrics_listen,
            plan,
            group: Group::new(peer::group_number(config.group.as_deref().unwrap_or(USUAL_GROUP))),
            devices,
            ring_bytes: config.ring_bytes,
            retention: retention(&config),
            measure_memory: config
                .measure_memory_seconds
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into())),
            roles: Arc::new(config.roles()),
            flags,
            config,
        })
    }

    /// Reads the configuration again. What can change while the daemon runs does (devices, group, roles); the keys of what has
    /// changed and cannot are given back. Errors: it cannot be used, and nothing has changed.
    pub(super) fn reload(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let new = Self::new(self.flags.clone())?;
        let mut left = Vec::new();
        let mut differs = |key, differs| {
            if differs {
                left.push(key);
            }
        };
        differs("socket", new.socket != self.socket);
        differs("state-dir", new.state_dir != self.state_dir);
        differs("pin-dir", new.pin_dir != self.pin_dir);
        differs("metrics-listen", new.metrics_listen != self.metrics_listen);
        differs("plan", new.config.plan != self.config.plan);
        differs("ring-bytes", new.ring_bytes != self.ring_bytes);
        differs("measure-memory-seconds", new.measure_memory != self.measure_memory);
        differs("journal and its limits", new.retention != self.retention);
        self.devices = new.devices;
        self.group.set(new.group.number());
        self.roles = new.roles;
        self.config.devices = new.config.devices;
        self.config.group = new.config.group;
        self.config.role = new.config.role;
        Ok(left)
    }
}

/// How much history is to be kept.
fn retention(config: &Config) -> Option<Retention> {
    if config.journal == Some(false) {
        return None;
    }
    let usual = Retention::default();
    let bytes = |mib: Option<u64>, usual: u64| mib.map_or(usual, |mib| mib.saturating_mul(1 << 20));
    Some(Retention {
        age: config.journal_days.map_or(usual.age, |days| Duration::from_secs(u64::from(days) * 24 * 3600)),
        size: bytes(config.journal_size_mib, usual.size),
        free: bytes(config.journal_min_free_mib, usual.free),
    })
}

/// µs of the clock that a service manager wants to hear (`CLOCK_MONOTONIC`).
pub(super) fn monotonic_us() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_takes_precedence_over_the_configuration_and_that_over_what_is_usual() {
        let flags = Flags { socket: Some("/a".into()), plan: Some(Plan::Snapshot), ..Flags::default() };
        let config = Config {
            socket: Some("/b".into()),
            state_dir: Some("/c".into()),
            plan: Some("lean".to_owned()),
            metrics_listen: Some("127.0.0.1:9400".to_owned()),
            devices: Some(vec!["1:5=nvidia0".to_owned()]),
            ..Config::default()
        };
        let settings = Settings::of(flags, config).unwrap();
        assert_eq!(settings.socket, PathBuf::from("/a"));
        assert_eq!(settings.state_dir, PathBuf::from("/c"));
        assert_eq!(settings.pin_dir, PathBuf::from(USUAL_PIN_DIR));
        assert_eq!(settings.plan, Plan::Snapshot);
        assert_eq!(settings.metrics_listen, Some("127.0.0.1:9400".parse().unwrap()));
        assert_eq!(settings.devices.len(), 1);
    }

    #[test]
    fn values_that_mean_nothing_are_refused_by_name() {
        let problem = |config| format!("{:#}", Settings::of(Flags::default(), config).unwrap_err());
        let plan = |name: &str| Config { plan: Some(name.to_owned()), ..Config::default() };
        assert!(problem(plan("fast")).contains("fast"));
        let listen = Config { metrics_listen: Some("9400".to_owned()), ..Config::default() };
        assert!(problem(listen).contains("metrics-listen"));
        let devices = Config { devices: Some(vec!["x".to_owned()]), ..Config::default() };
        assert!(problem(devices).contains("devices"));
    }
}
