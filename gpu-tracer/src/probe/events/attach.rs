//! Getting at the hooks: those that an earlier process left, or new ones.

use std::{
    collections::HashSet,
    thread,
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf},
};
use zerocopy::IntoBytes;

use super::{
    EventSource, Options, Start,
    calls::{self, Calls},
    driver::DriverHooks,
    hooks::{self, Attached, HOOKS, HookReport},
    pins::{Kept, Pins},
    refused, system_calls,
    tracked::{self, TrackedSet},
    translate::Translator,
};
use crate::{
    kernel::{Answer, Btf, Features},
    model::DeviceTable,
    probe::{
        OBJECT, ProbeError, layout,
        loader::Loader,
        wanted::{self, Wanted},
    },
};

/// Maps of the event programs that have a size, and the least they can have, for those who load only the others.
pub(in crate::probe) const MAPS: [(&str, u32); 11] = [
    ("EVENTS", 1),
    ("TRACKED", 1),
    ("TOUCHES", 1),
    (calls::MAPS[0], 1),
    (calls::MAPS[1], 1),
    (calls::MAPS[2], 1),
    (calls::MAPS[3], 1),
    (calls::MAPS[4], 1),
    ("SPENT", 1),
    ("SPENT_PLACES", 1),
    CALLING,
];
/// For nobody unless every system call is followed.
const CALLING: (&str, u32) = ("CALLING", 1);
/// Maps of the other programs that take memory when they are made.
const OTHER_MAPS: [(&str, u32); 2] = [("HOLDS", 1), ("SUBJECTS", 1)];
/// Maps that this side uses.
const USED: [&str; 13] = [
    "EVENTS",
    tracked::MAPS[0],
    tracked::MAPS[1],
    wanted::MAPS[0],
    wanted::MAPS[1],
    "TOUCHES",
    "DROPS",
    "REPORTED",
    calls::MAPS[0],
    calls::MAPS[1],
    calls::MAPS[2],
    calls::MAPS[3],
    calls::MAPS[4],
];

/// How long everything may take to be attached when the source is made.
const ATTACHED_WITHIN: Duration = Duration::from_secs(30);
const BETWEEN_REFRESHES: Duration = Duration::from_millis(2);

impl EventSource {
    /// Attaches the hooks, or takes over those in `options.pin_dir`. Needs CAP_BPF, CAP_PERFMON and, for `cgroup/dev`,
    /// CAP_NET_ADMIN and CAP_SYS_ADMIN (or root), BTF, and Linux 5.8.
    ///
    /// Hooks that this kernel does not have or does not allow are left out: see [`EventSource::hooks`].
    /// Errors: nothing can be loaded at all, or the directory cannot be used.
    pub fn attach(btf: &Btf, devices: &DeviceTable, options: &Options) -> Result<Self, ProbeError> {
        if OBJECT.is_empty() {
            return Err(ProbeError::NoObject);
        }
        let layout = layout::resolve(btf)?;
        let ring_bytes = options.ring_bytes.checked_next_power_of_two().unwrap_or(1 << 31);
        let parts = [
            OBJECT,
            layout.as_bytes(),
            &ring_bytes.to_ne_bytes(),
            &[u8::from(options.driver), u8::from(options.calls)],
        ];
        let pins = options.pin_dir.as_deref().map(|directory| Pins::take(directory, &parts)).transpose()?;
        let mut source = match pins.as_ref().map(|pins| pins.reopen(&USED)).transpose() {
            Ok(Some(Some(kept))) => Self::resume(kept, options.calls)?,
            Ok(_) => Self::load(layout.as_bytes(), ring_bytes, options, pins.as_ref())?,
            Err(error) => {
                tracing::debug!(?error, "what an earlier process left cannot be used");
                let mut source = Self::load(layout.as_bytes(), ring_bytes, options, pins.as_ref())?;
                source.start = Start::Replaced;
                source
            }
        };
        if let Some(pins) = &pins
            && pins.remove_others()? > 0
            && source.start == Start::Fresh
        {
            source.start = Start::Replaced;
        }
        source.set_devices(devices)?;
        source.follow_driver(options.driver, pins.as_ref());
        source._pins = pins;
        Ok(source)
    }

    /// The hooks at the driver's functions, last of all: whatever they tell of can then be followed up.
    fn follow_driver(&mut self, asked: bool, pins: Option<&Pins>) {
        if !asked {
            return;
        }
        if let (Start::Resumed, Some(pins)) = (self.start, pins) {
            self.driver = DriverHooks::resume(&pins.directory(), &Features::probe("/".as_ref()));
        }
        // Without hooks nobody told of the end of what was in progress. In maps of our own there is nothing yet.
        let all_the_time = self.driver.is_complete();
        if !all_the_time && self.start == Start::Resumed {
            self.calls.forget_all();
        }
        self.refresh_driver();
        // Nobody waits for this source yet.
        let deadline = Instant::now() + ATTACHED_WITHIN;
        while self.driver_is_unfinished() && Instant::now() < deadline {
            thread::sleep(BETWEEN_REFRESHES);
            self.refresh_driver();
        }
        if all_the_time {
            self.earlier = self.calls.in_progress();
        }
        if let (Start::Fresh | Start::Replaced, Some(pins)) = (self.start, pins) {
            self.driver.keep_in(&pins.directory());
        }
    }

    fn load(
        layout: &[u8],
        ring_bytes: u32,
        options: &Options,
        pins: Option<&Pins>,
    ) -> Result<Self, ProbeError> {
        let mut loader = Loader::begin()?.made();
        let classes = system_calls::classes();
        loader.override_global("KERNEL", layout, true).map_max_entries("EVENTS", ring_bytes);
        loader.override_global("CALL_CLASSES", &classes[..], true);
        for (map, least) in OTHER_MAPS.into_iter().chain((!options.calls).then_some(CALLING)) {
            loader.map_max_entries(map, least);
        }
        let mut ebpf = loader.load(OBJECT).map_err(ProbeError::Load)?;
        let features = Features::probe("/".as_ref());
        let (attached, hooks) = hooks::attach(&mut ebpf, &features, options.calls);
        let driver =
            if options.driver { DriverHooks::load(&mut ebpf, &features) } else { DriverHooks::not_asked() };
        if let Some(pins) = pins {
            let maps =
                USED.map(|name| ebpf.map(name).map(|map| (name, map)).ok_or(ProbeError::Incompatible(name)));
            let maps = maps.into_iter().collect::<Result<Vec<_>, _>>()?;
            pins.keep(&maps, &attached, driver.programs())?;
        }
        Self::assemble(&mut |name| take(&mut ebpf, name), attached, hooks, driver, Start::Fresh)
    }

    fn resume(kept: Kept, calls: bool) -> Result<Self, ProbeError> {
        let Kept { mut maps, links } = kept;
        let features = Features::probe("/".as_ref());
        let asked_for = HOOKS.iter().enumerate().filter(|(_, hook)| hook.is_asked_for(calls));
        let hooks = asked_for.map(|(index, hook)| {
            if let Some(attached) = links.iter().find(|attached| attached.hook == index) {
                return attached.report(&features);
            }
            let detail = "it could not be attached when the hooks were made".to_owned();
            HookReport { hook: hook.name, works: Answer::No, detail: Some(detail), blind: true }
        });
        let hooks = hooks.collect();
        let mut map = |name: &'static str| {
            let at = maps.iter().position(|(kept, _)| *kept == name).ok_or(ProbeError::Incompatible(name))?;
            Map::from_map_data(maps.swap_remove(at).1).map_err(refused(name))
        };
        Self::assemble(&mut map, links, hooks, DriverHooks::not_asked(), Start::Resumed)
    }

    fn assemble(
        map: &mut dyn FnMut(&'static str) -> Result<Map, ProbeError>,
        attached: Vec<Attached>,
        hooks: Vec<HookReport>,
        driver: DriverHooks,
        start: Start,
    ) -> Result<Self, ProbeError> {
        Ok(Self {
            ring: RingBuf::<MapData>::try_from(map("EVENTS")?).map_err(refused("EVENTS"))?,
            tracked: TrackedSet::take(&mut *map)?,
            absent: HashSet::new(),
            wanted: Wanted::take(&mut *map)?,
            touches: HashMap::try_from(map("TOUCHES")?).map_err(refused("TOUCHES"))?,
            drops: PerCpuArray::try_from(map("DROPS")?).map_err(refused("DROPS"))?,
            reported: Array::try_from(map("REPORTED")?).map_err(refused("REPORTED"))?,
            attached,
            hooks,
            driver,
            calls: Calls::take(&mut *map)?,
            earlier: Vec::new(),
            start,
            translator: Translator::default(),
            foreign: 0,
            foreign_ns: 0,
            drained: None,
            _pins: None,
        })
    }
}

fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, ProbeError> {
    ebpf.take_map(name).ok_or(ProbeError::Incompatible(name))
}
