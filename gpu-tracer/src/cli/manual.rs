//! What `--help` and the man pages say beyond the options: exit statuses, environment, examples. Written once, printed as both.

use std::io;

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory as _};
use clap_mangen::roff::{Roff, bold, roman};

use super::{Cli, DEVICES_VARIABLE};

/// Sections of one page.
#[derive(Clone, Copy)]
pub(super) struct Sections {
    /// Status and meaning.
    statuses: &'static [(&'static str, &'static str)],
    /// Variable and meaning.
    environment: &'static [(&'static str, &'static str)],
    /// Command and what it shows.
    examples: &'static [(&'static str, &'static str)],
}

const NO_COLOR: (&str, &str) = (
    "NO_COLOR",
    "Set to anything: no colours. There are none either where TERM is dumb or the output is no terminal.",
);
const COLUMNS: (&str, &str) = ("COLUMNS", "Width of a terminal that does not tell its own.");
const DEVICES: (&str, &str) =
    (DEVICES_VARIABLE, "Devices as for --device, separated by commas; not read where --device is given.");

const CONFIG: (&str, &str) = (
    super::CONFIG_VARIABLE,
    "Configuration instead of /etc/gpu-tracer.toml: [[role]] there says which programs of this site are monitors or infrastructure.",
);

const PROGRAM: Sections = Sections {
    statuses: &[
        ("0", "Free: nobody holds it. doctor: fully able."),
        ("1", "Held; for why, wait and release: by what can be killed. doctor: degraded."),
        ("2", "Wrong usage or an error. doctor: cannot work here."),
        ("3", "Unknown: nobody was seen, but not everything could be seen."),
        ("4", "why, wait, release: stuck, SIGKILL will not help."),
        ("5", "why, wait, release: memory is in use and nobody holds a handle."),
    ],
    environment: &[DEVICES, CONFIG, NO_COLOR, COLUMNS],
    examples: &[
        ("gpu-tracer holders", "Who holds any GPU of this host."),
        ("gpu-tracer why 4", "What keeps GPU 4, and what to do about it."),
        ("gpu-tracer release 4 --dry-run", "Whom it would end to free GPU 4."),
        ("gpu-tracer wait 4 --timeout 60s", "Return when GPU 4 is free."),
        (
            "gpu-tracer history 4 --since 2h",
            "Who held GPU 4 lately, and who ended them (where the daemon runs).",
        ),
        ("gpu-tracer doctor", "What works here, and what to do about the rest."),
    ],
};

const HOLDERS: Sections = Sections {
    statuses: &[
        ("0", "Nobody holds it, and everything was looked at."),
        ("1", "Held, if only by something that cannot be named; there may be more that could not be seen."),
        ("2", "Wrong usage or an error."),
        (
            "3",
            "Nobody was seen, but not everything could be seen; the answer says what, and what would help.",
        ),
    ],
    environment: &[DEVICES, CONFIG, NO_COLOR, COLUMNS],
    examples: &[
        ("gpu-tracer holders", "Who holds any GPU of this host."),
        ("gpu-tracer holders 4", "Who holds GPU 4 (PCI bus order, as in nvidia-smi)."),
        (
            "gpu-tracer holders 0-3 /dev/nvidia5 GPU-8f6a",
            "GPUs by range, by device node, and by the beginning of a UUID.",
        ),
        (
            "gpu-tracer holders --format json | jq '.holders[].pid'",
            "PIDs of the holders, as the host counts them.",
        ),
        ("gpu-tracer holders --expand | less", "Every holder in a row of its own, nothing cut off."),
        (
            "gpu-tracer holders 0 >/dev/null; case $? in 0) echo free;; 1) echo held;; *) echo unknown;; esac",
            "For scripts: only 0 means free.",
        ),
        ("gpu-tracer holders --device /dev/kfd=kfd", "Who holds another device."),
    ],
};

/// The worst of the GPUs asked about decides.
const DIAGNOSED: &[(&str, &str)] = &[
    ("0", "Free: nobody holds a handle, and everything was looked at."),
    ("1", "Held by what can be killed."),
    ("2", "Wrong usage or an error."),
    ("3", "Unknown: not everything could be seen, or what was seen has no name."),
    ("4", "Stuck: SIGKILL will not help. Of several GPUs the worst counts: 4, then 5, 1, 3, 0."),
    ("5", "Memory is in use and nobody holds a handle: no process can be killed to free it."),
];

const WHY: Sections = Sections {
    statuses: DIAGNOSED,
    environment: &[DEVICES, CONFIG, NO_COLOR, COLUMNS],
    examples: &[
        ("gpu-tracer why 4", "What keeps GPU 4, and what to do about it."),
        ("gpu-tracer why --format json | jq -r '.gpus[] | [.gpu, .verdict] | @tsv'", "One verdict per GPU."),
        ("gpu-tracer why --pid 428", "Is process 428 to blame?"),
    ],
};

const WAIT: Sections = Sections {
    statuses: DIAGNOSED,
    environment: &[DEVICES, CONFIG, NO_COLOR, COLUMNS],
    examples: &[
        ("gpu-tracer wait 0-3 --timeout 60s", "Until GPUs 0 to 3 are free, for a minute at most."),
        (
            "ExecStartPre=/usr/bin/gpu-tracer wait all --timeout 120s --ignore infrastructure",
            "In a systemd unit: start only on free GPUs. No shell is needed.",
        ),
        (
            "gpu-tracer wait 0 --below 1GiB --timeout 5m",
            "Until less than 1 GiB is used on GPU 0, whoever holds it.",
        ),
    ],
};

const RELEASE: Sections = Sections {
    statuses: DIAGNOSED,
    environment: &[DEVICES, CONFIG, NO_COLOR, COLUMNS],
    examples: &[
        ("gpu-tracer release 4 --dry-run", "The plan, and nothing else."),
        ("gpu-tracer release 4", "Says whom it will end, asks, ends them and waits for the release."),
        ("gpu-tracer release all --yes --grace 30s", "For scripts: half a minute for an orderly end."),
    ],
};

const WATCH: Sections = Sections {
    statuses: &[
        ("0", "Whoever read it has gone."),
        ("2", "The daemon has ended, hooks cannot be attached (not root?), wrong usage, or an error."),
    ],
    environment: &[DEVICES, NO_COLOR],
    examples: &[
        ("gpu-tracer watch", "What happens to the GPUs of this host, from now on."),
        (
            "gpu-tracer watch --format json | jq -c 'select(.what == \"killed\") | {pid: .process.pid, by: .by[0].comm}'",
            "Who kills whom, for programs.",
        ),
        ("gpu-tracer watch --standalone --device /dev/fuse=fuse", "Another device, without a daemon."),
    ],
};

const RUN: Sections = Sections {
    statuses: &[
        ("0", "It was told to stop (SIGTERM, SIGINT), or --unpin did its work."),
        ("2", "Another daemon runs, the configuration is wrong, the kernel does not allow it, or an error."),
    ],
    environment: &[
        DEVICES,
        CONFIG,
        (
            "NOTIFY_SOCKET, WATCHDOG_USEC",
            "Set by systemd: it is told when the daemon is ready, and that it lives.",
        ),
    ],
    examples: &[
        ("systemctl enable --now gpu-tracer", "As a service: the usual way."),
        ("sudo gpu-tracer run", "By hand, with what /etc/gpu-tracer.toml says."),
        ("curl --unix-socket /run/gpu-tracer/gpu-tracer.sock http://localhost/v1/status", "How it is doing."),
        (
            "sudo gpu-tracer run --socket /run/t/sock --state-dir /run/t/state --pin-dir /run/t/pins --device 1:5=nvidia0",
            "A second one beside it, to try something out.",
        ),
        ("sudo gpu-tracer run --unpin", "After the daemon was removed: nothing of it stays in the kernel."),
    ],
};

const RECORDED: &[(&str, &str)] = &[
    ("0", "Told, and the record of that time is complete."),
    ("2", "There is no such record, wrong usage, or an error."),
    ("3", "Told as far as it is known: the record of that time has gaps, which are listed."),
];

const TIMEZONE: (&str, &str) = ("TZ", "The time zone in which times are read and printed.");

const HISTORY: Sections = Sections {
    statuses: RECORDED,
    environment: &[TIMEZONE, NO_COLOR, COLUMNS],
    examples: &[
        ("gpu-tracer history 4 --since 2h", "Who held GPU 4 in the last two hours, and who ended them."),
        (
            "gpu-tracer history 4 --at '2026-11-29 03:12'",
            "Who held GPU 4 then; also before the last restart of the machine.",
        ),
        ("gpu-tracer history --story 428", "What became of process 428 and of what it held."),
        ("gpu-tracer history --since 03:00 --until 03:30 --events", "All that happened, event by event."),
        (
            "gpu-tracer history --journal ./journal.db --since '2026-11-28 00:00'",
            "A journal copied from another machine (with journal.db-wal, if there is one).",
        ),
        (
            "gpu-tracer history --sql 'SELECT what, count(*) FROM events GROUP BY what' --format csv",
            "SQL of your own: the tables are described in docs/journal.md.",
        ),
    ],
};

const REPORT: Sections = Sections {
    statuses: RECORDED,
    environment: &[TIMEZONE],
    examples: &[
        (
            "gpu-tracer report --out incident.html --since 03:00 --until 04:00 --at 03:12",
            "One file for the ticket: it needs no network.",
        ),
        (
            "gpu-tracer report 4 --out gpu4.json --format perfetto",
            "For https://ui.perfetto.dev (Open trace file).",
        ),
        (
            "gpu-tracer report --journal ./journal.db --out incident.html",
            "From a journal of another machine.",
        ),
    ],
};

const DOCTOR: Sections = Sections {
    statuses: &[
        ("0", "Fully able."),
        ("1", "Degraded: some answers will be \"unknown\"."),
        ("2", "Cannot work here, wrong usage, or an error."),
    ],
    environment: &[DEVICES, NO_COLOR, COLUMNS],
    examples: &[
        ("gpu-tracer doctor", "What works here, and what to do about the rest."),
        (
            "gpu-tracer doctor --format json | jq '.checks[] | select(.answer != \"yes\")'",
            "What does not work, for programs.",
        ),
    ],
};

const COMPLETIONS: Sections = Sections {
    statuses: &[],
    environment: &[],
    examples: &[
        ("gpu-tracer completions bash >/etc/bash_completion.d/gpu-tracer", "For all users of bash."),
        ("gpu-tracer completions zsh >\"${fpath[1]}/_gpu-tracer\"", "For zsh."),
    ],
};

const MAN: Sections = Sections {
    statuses: &[],
    environment: &[],
    examples: &[
        ("gpu-tracer man | man -l -", "Read the program's page."),
        ("gpu-tracer man holders >gpu-tracer-holders.1", "The page of one command, for a package."),
    ],
};

/// The sections of a command's page; the program's own for `None`.
pub(super) fn sections(topic: Option<&str>) -> Sections {
    match topic {
        Some("holders") => HOLDERS,
        Some("why") => WHY,
        Some("wait") => WAIT,
        Some("release") => RELEASE,
        Some("watch") => WATCH,
        Some("run") => RUN,
        Some("history") => HISTORY,
        Some("report") => REPORT,
        Some("doctor") => DOCTOR,
        Some("completions") => COMPLETIONS,
        Some("man") => MAN,
        _ => PROGRAM,
    }
}

/// Commands that have a page: what they are called, the name of the page, and how they are called.
const TOPICS: [(&str, &str, &str); 11] = [
    ("holders", "gpu-tracer-holders", "gpu-tracer holders"),
    ("why", "gpu-tracer-why", "gpu-tracer why"),
    ("wait", "gpu-tracer-wait", "gpu-tracer wait"),
    ("release", "gpu-tracer-release", "gpu-tracer release"),
    ("watch", "gpu-tracer-watch", "gpu-tracer watch"),
    ("run", "gpu-tracer-run", "gpu-tracer run"),
    ("history", "gpu-tracer-history", "gpu-tracer history"),
    ("report", "gpu-tracer-report", "gpu-tracer report"),
    ("doctor", "gpu-tracer-doctor", "gpu-tracer doctor"),
    ("completions", "gpu-tracer-completions", "gpu-tracer completions"),
    ("man", "gpu-tracer-man", "gpu-tracer man"),
];

/// Commands that have a page.
pub(super) fn topics() -> PossibleValuesParser {
    PossibleValuesParser::new(TOPICS.map(|(topic, _, _)| topic))
}

/// What a page is about, as if it were a program of its own; the program itself for `None`.
pub(super) fn page(topic: Option<&str>) -> Command {
    let mut program = Cli::command();
    program.build();
    let known = TOPICS.iter().find(|(known, _, _)| Some(*known) == topic);
    match known.and_then(|known| Some((known, program.find_subcommand(known.0)?.clone()))) {
        Some(((_, name, usage), command)) => command.name(*name).bin_name(*usage),
        None => program,
    }
}

/// The command with everything this module knows in its long help.
pub(super) fn add_to_help(program: Command) -> Command {
    let names: Vec<String> = program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let program = program.after_long_help(sections(None).plain());
    names.iter().fold(program, |program, name| {
        let text = sections(Some(name)).plain();
        program.mut_subcommand(name, |command| command.after_long_help(text))
    })
}

impl Sections {
    fn titled(&self) -> [(&'static str, &'static [(&'static str, &'static str)]); 3] {
        [("Exit status", self.statuses), ("Environment", self.environment), ("Examples", self.examples)]
    }

    /// For `--help`.
    fn plain(&self) -> String {
        let mut text = String::new();
        for (title, entries) in self.titled() {
            if entries.is_empty() {
                continue;
            }
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("{title}:\n"));
            for (what, meaning) in entries {
                match what.len() {
                    1 => text.push_str(&format!("  {what}  {meaning}\n")),
                    _ => text.push_str(&format!("  {what}\n      {meaning}\n")),
                }
            }
        }
        text
    }

    /// For a man page.
    pub(super) fn render_roff(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let mut roff = Roff::new();
        for (title, entries) in self.titled() {
            if entries.is_empty() {
                continue;
            }
            roff.control("SH", [title.to_uppercase().as_str()]);
            for (what, meaning) in entries {
                roff.control("TP", []);
                roff.text([bold(*what)]);
                roff.text([roman(*meaning)]);
            }
        }
        roff.to_writer(out)
    }
}
