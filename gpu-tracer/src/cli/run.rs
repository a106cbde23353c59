//! `gpu-tracer run`

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};

use crate::daemon::{self, Flags, Plan};
use crate::kernel::devices::ExtraDevice;

/// Run the daemon that remembers who opened what, and sees what no look can see afterwards
///
/// It watches the GPU devices from now on and answers on a unix socket: `gpu-tracer holders` and `gpu-tracer watch` ask it where it
/// runs. What stands here takes precedence over the configuration file. SIGHUP reads that again, SIGTERM ends the daemon. Its hooks
/// stay in the BPF file system so that the next one continues where it ended; --unpin takes them away.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Listen at this socket [default: /run/gpu-tracer/gpu-tracer.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Keep what outlives the daemon in this directory [default: /var/lib/gpu-tracer]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Keep the hooks in this directory of a BPF file system [default: /sys/fs/bpf/gpu-tracer]
    #[arg(long, value_name = "DIR")]
    pin_dir: Option<PathBuf>,

    /// Give /metrics (Prometheus) at this address, too
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_listen: Option<SocketAddr>,

    /// Where facts come from [default: auto]
    ///
    /// full: kprobes at the driver's own functions, which give opens and releases to the moment, and all of lean. lean: events from
    /// tracepoints and device nodes, and snapshots. snapshot: snapshots only. auto: the first of these that works here, and full as
    /// soon as the driver is loaded. exhaustive: what auto takes, and every system call of the host is looked at, so that what is
    /// closed, mapped or handed over is told within milliseconds; it makes all of them slower, whoever makes them (some 200 ns each).
    #[arg(long, value_name = "PLAN", value_parser = plans())]
    plan: Option<Plan>,

    /// Read this configuration [default: /etc/gpu-tracer.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Detach the hooks that a daemon has left, and end
    #[arg(long)]
    unpin: bool,
}

fn plans() -> impl clap::builder::TypedValueParser<Value = Plan> {
    let names = ["auto", "full", "lean", "exhaustive", "snapshot"].map(PossibleValue::new);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Plan>())
}

impl Arguments {
    /// Until it is told to stop; and whether what there is to say could be written.
    pub(super) fn run(
        &self,
        devices: Vec<ExtraDevice>,
        out: &mut dyn io::Write,
    ) -> anyhow::Result<io::Result<()>> {
        let flags = Flags {
            socket: self.socket.clone(),
            state_dir: self.state_dir.clone(),
            pin_dir: self.pin_dir.clone(),
            metrics_listen: self.metrics_listen,
            plan: self.plan,
            config: self.config.clone().or_else(super::configuration),
            devices,
        };
        if self.unpin {
            let removed = daemon::unpin(flags)?;
            return Ok(match removed {
                0 => writeln!(out, "there were no hooks to detach"),
                _ => writeln!(out, "the hooks are detached"),
            });
        }
        daemon::run(flags)?;
        Ok(Ok(()))
    }
}
