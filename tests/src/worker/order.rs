//! What a worker can be told, and what it answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One thing to do. Descriptor numbers and addresses are the worker's own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// `open(2)` so many times; answers [`Reply::Fds`].
    Open {
        /// What.
        path: PathBuf,
        /// `O_*`.
        flags: i32,
        /// How often.
        times: u32,
    },
    /// `dup(2)`; answers [`Reply::Fd`].
    Dup(i32),
    /// `dup2(2)` from, to; answers [`Reply::Fd`].
    Dup2(i32, i32),
    /// `close(2)`.
    Close(i32),
    /// Maps so many bytes, private; answers [`Reply::At`].
    Map(i32, usize),
    /// `munmap(2)`: address, bytes.
    Unmap(u64, usize),
    /// `mremap(2)`: address, bytes, new bytes; answers [`Reply::At`].
    Remap(u64, usize, usize),
    /// A connected pair of unix stream sockets; answers [`Reply::Fds`].
    SocketPair,
    /// A unix stream socket that listens at this path; answers [`Reply::Fd`].
    Listen(PathBuf),
    /// One connected to this path; answers [`Reply::Fd`].
    Connect(PathBuf),
    /// Accepts a connection; answers [`Reply::Fd`].
    Accept(i32),
    /// Sends one byte with descriptors through a socket.
    Send(i32, Vec<i32>),
    /// Receives one byte and what comes with it; answers [`Reply::Fds`].
    Receive(i32),
    /// Receives one byte and lets the kernel drop what comes with it.
    ReceiveWithoutFds(i32),
    /// `pidfd_getfd(2)`: PID, its descriptor; answers [`Reply::Fd`].
    Take(u32, i32),
    /// Sets up an io_uring; answers [`Reply::Fd`].
    Ring,
    /// Registers descriptors with a ring.
    Register(i32, Vec<i32>),
    /// Drops all files registered with a ring.
    Unregister(i32),
    /// Maps a ring; answers [`Reply::At`].
    MapRing(i32),
    /// `ioctl(2)`: descriptor, request, what the argument points to.
    Request(i32, u64, Vec<u8>),
    /// The same. Answered *before* the call, which may block for good.
    RequestForGood(i32, u64, Vec<u8>),
    /// Makes another worker, whose socket comes with this order; answers [`Reply::Pid`].
    Spawn(Spawn),
    /// `waitpid(2)` for this child (PID as the worker sees it).
    Reap(u32),
    /// `unshare(2)` with these `CLONE_*` flags; `CLONE_NEWNS` also cuts propagation.
    Unshare(i32),
    /// Joins a namespace of another process: a path such as `/proc/PID/ns/net`.
    JoinNamespace(PathBuf),
    /// Mounts a fresh tmpfs on this directory.
    MountTmpfs(PathBuf),
    /// Makes a character device node: path, major, minor.
    MakeNode(PathBuf, u32, u32),
    /// `chroot(2)` and `chdir("/")`.
    ChangeRoot(PathBuf),
    /// `chdir(2)`.
    ChangeDir(PathBuf),
    /// Sets comm.
    Rename(Vec<u8>),
    /// Overwrites the command line.
    Retitle(Vec<u8>),
    /// `setsid(2)`.
    NewSession,
    /// Orphans below this worker become its children.
    BecomeSubreaper,
    /// Gives up root for this user and group id.
    BecomeUser(u32),
    /// Replaces the program by a fresh copy that goes on obeying; close-on-exec descriptors go.
    Exec,
    /// Writes one page. Answered *before* the write, which may block for good.
    Write(i32),
    /// Dies of SIGSEGV with a core file in the working directory. Answered before.
    DumpCore,
    /// Ends the calling thread alone. Answered before.
    ExitThread,
    /// Ends the process. Not answered.
    Exit,
}

/// What kind of worker to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spawn {
    /// A forked process.
    Process,
    /// A thread.
    Thread,
    /// A process that shares the maker's fd table (`CLONE_FILES` without `CLONE_THREAD`).
    SharingTable,
    /// A process that shares the maker's memory (`CLONE_VM` without `CLONE_THREAD`), and its fd table if `table`.
    ///
    /// It shares thread-local storage too, so it obeys only what needs no memory: see `worker/bare.rs`.
    SharingMemory {
        /// The fd table too?
        table: bool,
    },
    /// A forked process with exactly this PID.
    WithPid(u32),
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// First message of every worker: its thread id as it sees itself, 0 for "the same as my PID".
    Hello(u32),
    /// Done.
    Done,
    /// Done; this is the descriptor.
    Fd(i32),
    /// Done; these are the descriptors.
    Fds(Vec<i32>),
    /// Done; this is the address.
    At(u64),
    /// Done; the child's PID as the worker sees it, or 0 for a thread.
    Pid(u32),
    /// Not done: `errno`, or 0 where there is none, and the message.
    Failed(i32, String),
}
