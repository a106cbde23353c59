//! What was not told, by cause.

/// Why something was not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Drop {
    /// The ring was full.
    RingFull = 0,
    /// The kernel's own memory could not be read as expected.
    Unreadable = 1,
    /// A process could not be tracked: `TRACKED` is full.
    TrackedFull = 2,
    /// A process did too much in too short a time.
    RateLimited = 3,
    /// An fd table had more device files than are followed.
    TableTooLong = 4,
    /// A program was not run because it was running already on that CPU. The kernel counts these itself.
    Missed = 5,
    /// The record made no sense to the user side, which counts these.
    Foreign = 6,
    /// A call into the driver could not be followed: `CALLS` or `DEFERRED` is full.
    CallsFull = 7,
    /// A call into the driver returned and nobody was told: the kernel had no room left to remember where it was to return
    /// to, or the hook was not yet there.
    ReturnMissed = 8,
}

impl Drop {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::RingFull,
        Self::Unreadable,
        Self::TrackedFull,
        Self::RateLimited,
        Self::TableTooLong,
        Self::Missed,
        Self::Foreign,
        Self::CallsFull,
        Self::ReturnMissed,
    ];
}

/// How often, and when last, for one [`Drop`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCount {
    /// Ever.
    pub count: u64,
    /// When last, ns; 0 for never.
    pub last_ns: u64,
}

/// The only element of the per-CPU array `DROPS`: one counter for each [`Drop`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts(pub [DropCount; Drop::ALL.len()]);
const _: () = assert!(size_of::<DropCounts>() == 144);
