//! The bytes of the `EVENTS` ring as records. The bytes are not trusted: whatever they are, a record or nothing comes out.

use gpu_tracer_common::{
    LAYOUT,
    events::{
        DriverRecord, EXIT_HOLDS, EventHead, ExecRecord, ExitHold, ExitRecord, ForkRecord, KIND_CALLED,
        KIND_DEFERRED, KIND_EXECED, KIND_EXITING, KIND_FORKED, KIND_FREED, KIND_MAPPED, KIND_MODULE_LOADED,
        KIND_MODULE_UNLOADED, KIND_OPENED, KIND_OPENING, KIND_RELEASED, KIND_RELEASING, KIND_RENAMED,
        KIND_SIGNALLED, KIND_TOUCHED, KIND_VICTIM, ModuleRecord, RenameRecord, SignalRecord, TouchRecord,
    },
};
use zerocopy::FromBytes;

/// One record.
#[derive(Clone, Debug)]
pub(super) enum Record {
    Touched(TouchRecord),
    Forked(ForkRecord),
    Execed(ExecRecord),
    Exiting(ExitRecord, Vec<ExitHold>),
    Freed(EventHead),
    Renamed(RenameRecord),
    Signalled(SignalRecord),
    Victim(EventHead),
    ModuleLoaded(ModuleRecord),
    ModuleUnloaded(ModuleRecord),
    InDriver(DriverRecord),
    Called(EventHead),
}

impl Record {
    /// Decodes one item of the ring; `None` for anything that is not exactly one record of this layout.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, _) = EventHead::read_from_prefix(bytes).ok()?;
        if head.header.layout != LAYOUT {
            return None;
        }
        Some(match head.header.kind {
            KIND_TOUCHED => Self::Touched(whole(bytes)?),
            KIND_FORKED => Self::Forked(whole(bytes)?),
            KIND_EXECED => Self::Execed(whole(bytes)?),
            KIND_EXITING => {
                let (record, held) = exit(bytes)?;
                Self::Exiting(record, held)
            }
            KIND_FREED => Self::Freed(whole(bytes)?),
            KIND_RENAMED => Self::Renamed(whole(bytes)?),
            KIND_SIGNALLED => Self::Signalled(whole(bytes)?),
            KIND_VICTIM => Self::Victim(whole(bytes)?),
            KIND_MODULE_LOADED => Self::ModuleLoaded(whole(bytes)?),
            KIND_MODULE_UNLOADED => Self::ModuleUnloaded(whole(bytes)?),
            KIND_CALLED => Self::Called(whole(bytes)?),
            KIND_OPENING | KIND_OPENED | KIND_RELEASING | KIND_DEFERRED | KIND_RELEASED | KIND_MAPPED => {
                Self::InDriver(whole(bytes)?)
            }
            _ => return None,
        })
    }
}

fn whole<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_bytes(bytes).ok()
}

fn exit(bytes: &[u8]) -> Option<(ExitRecord, Vec<ExitHold>)> {
    let (record, rest) = ExitRecord::read_from_prefix(bytes).ok()?;
    let held = usize::try_from(record.held).ok().filter(|held| *held <= EXIT_HOLDS)?;
    if rest.len() != held * size_of::<ExitHold>() {
        return None;
    }
    let holds = rest.chunks_exact(size_of::<ExitHold>()).map(ExitHold::read_from_bytes);
    Some((record, holds.collect::<Result<_, _>>().ok()?))
}
