//! The scenarios, one file per family. Each is a script that reads from top to bottom.

mod exits;
mod fds;
mod hostile;
mod in_flight;
mod io_uring;
mod lineage;
mod mappings;
mod namespaces;
mod negatives;
mod sharing;
mod stops;

use anyhow::Result;

use crate::stage::Stage;

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it stages.
    pub summary: &'static str,
    /// The script.
    pub play: fn(&mut Stage) -> Result<()>,
}

/// The scenario with this name.
#[must_use]
pub fn find(name: &str) -> Option<Scenario> {
    ALL.iter().find(|scenario| scenario.name == name).copied()
}

macro_rules! scenarios {
    ($($name:literal $play:path, $summary:literal;)*) => {
        /// All scenarios.
        pub const ALL: &[Scenario] = &[$(Scenario { name: $name, summary: $summary, play: $play }),*];
    };
}

scenarios! {
    "plain" fds::plain, "one process, one descriptor";
    "dup" fds::dup, "dup and dup2: several descriptors of one open file";
    "many-handles" fds::many_handles, "N descriptors in one process (default 20000)";
    "exec-inherited" fds::exec_inherited, "a descriptor without close-on-exec survives exec";
    "taken" fds::taken, "a descriptor taken with pidfd_getfd, its origin dead";
    "deleted-node" fds::deleted_node, "the node is removed and made anew while held";
    "mapping" mappings::mapping, "a mapping without a descriptor; next: a fork of it; next: the parent dies";
    "split-mapping" mappings::split, "a mapping with a hole in its middle is two";
    "frozen-thread" exits::frozen_thread, "B1: one thread in D state, SIGKILL pending; next: it ends";
    "zombie-leader" exits::zombie_leader, "B2: the leader has ended, a thread lives; next: killed";
    "half-exited" exits::half_exited, "B18: killed, stuck in closing an earlier descriptor; next: it ends";
    "dumping-core" exits::dumping_core, "stuck while writing a core file; next: it ends";
    "stopped" stops::stopped, "B11: SIGSTOP, SIGTERM pending; next: SIGCONT ends it";
    "frozen" stops::frozen, "frozen by the cgroup v2 freezer; next: thawed";
    "frozen-v1" stops::frozen_v1, "frozen by the cgroup v1 freezer; next: thawed";
    "private-table" sharing::private_table, "a thread with an fd table of its own holds, its leader does not";
    "shared-table" sharing::shared_table, "two processes with one fd table; next: the opener dies";
    "shared-memory" sharing::shared_memory, "two processes with one address space; next: the opener dies";
    "many-threads" sharing::many_threads, "N threads (default 16) of one process count once";
    "inherited" lineage::inherited, "B3: N opens (default 8), 50 children, parent killed; next K: child K killed";
    "pid-reuse" lineage::pid_reuse, "B12: the opener is dead and an innocent has its PID";
    "subreaper" lineage::subreaper, "B12: an orphan adopted by a subreaper";
    "broker" in_flight::broker, "B7: a broker passes a descriptor and keeps it; next: the receiver dies";
    "in-flight" in_flight::in_flight, "B6: sent, not received, sender dead; next: received; next: closed";
    "in-flight-unaccepted" in_flight::unaccepted, "the same on a connection that nobody accepted; next: accepted; next: received";
    "in-flight-nested" in_flight::nested, "the socket that carries it is itself in flight; next: the outer one is received";
    "in-flight-netns" in_flight::other_network_namespace, "B6 in another network namespace";
    "in-flight-deserted" in_flight::deserted_network_namespace, "B6 in a network namespace that no task lives in any more";
    "in-flight-shared" in_flight::shared, "two processes have the receiving end open";
    "in-flight-dropped" in_flight::dropped, "sent, then received without room for descriptors: nobody holds it";
    "io-uring" io_uring::registered, "B8: registered with a ring, descriptor closed; next: unregistered";
    "io-uring-mapped" io_uring::mapped, "the same with the ring's descriptor closed too, the ring mapped";
    "io-uring-inherited" io_uring::inherited, "a fork has the ring too; next: the opener dies";
    "other-node" namespaces::other_node, "B9: another node of the same number, in a private tmpfs, chroot";
    "pid-namespace" namespaces::pid_namespace, "B10: a holder in a child PID namespace";
    "open-close" negatives::open_close, "B4: opened and closed";
    "exec-cloexec" negatives::exec_cloexec, "B4: an exec dropped the descriptor";
    "regular-file" negatives::regular_file, "B4: a regular file called like the device";
    "zombie" negatives::zombie, "B4: a real zombie holds nothing";
    "o-path" negatives::o_path, "B4: an O_PATH descriptor holds nothing";
    "other-user" lineage::other_user, "the holder is an unprivileged user's process";
    "renamed-worker" hostile::renamed_worker, "A1: comm and argv rewritten to VLLM::Worker_TP0";
    "hostile-name" hostile::hostile_name, "comm and argv are the given bytes (hexadecimal)";
    "hostile-swarm" hostile::hostile_swarm, "N processes (default 200) with hostile names";
}
