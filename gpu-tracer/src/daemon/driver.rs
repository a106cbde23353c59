//! The driver's modules come and go, and the hooks at their functions with them.

use std::time::{Duration, Instant};

use super::core::Core;
use super::log;
use super::settings::Plan;
use crate::kernel::Answer;
use crate::probe::EventSource;
use crate::probe::events::{COST_OF_CALLS, DriverState};

/// After a module was announced: it is announced before its devices are there, and before it is gone.
const FOLLOW_UPS: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(300),
    Duration::from_millis(1200),
];

/// When to see again whether the driver has changed.
#[derive(Debug, Default)]
pub(super) struct DriverPace {
    due: Option<Instant>,
    follow_up: usize,
    /// Hooks are still to be attached.
    unfinished: Option<Instant>,
}

impl DriverPace {
    /// At the start. `unfinished`: whether hooks are still to be attached.
    pub(super) fn new(unfinished: bool, now: Instant) -> Self {
        Self { unfinished: unfinished.then_some(now), ..Self::default() }
    }

    /// A module was announced.
    fn announced(&mut self, now: Instant) {
        self.follow_up = 0;
        self.due = Some(now + FOLLOW_UPS[0]);
    }

    /// When it is time, if at all.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.unfinished).min()
    }

    /// Is it time? The next one is due later then.
    fn take(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        self.follow_up += 1;
        self.due = FOLLOW_UPS.get(self.follow_up).map(|after| now + *after);
        true
    }
}

impl Core {
    /// A module came or went: other numbers may be devices now, and the driver's functions elsewhere.
    pub(super) fn module_announced(&mut self) -> anyhow::Result<()> {
        self.driver_pace.announced(Instant::now());
        self.follow_driver()
    }

    /// The same once more, a little later.
    pub(super) fn follow_driver_if_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.driver_pace.take(now) {
            return self.follow_driver();
        }
        if self.driver_pace.unfinished.is_some_and(|due| now >= due) {
            self.attach_to_driver();
        }
        Ok(())
    }

    fn follow_driver(&mut self) -> anyhow::Result<()> {
        self.attach_to_driver();
        self.rediscover()
    }

    fn attach_to_driver(&mut self) {
        let before = self.driver_state();
        if let Some(source) = &mut self.source {
            source.refresh_driver();
        }
        let unfinished = self.source.as_ref().is_some_and(EventSource::driver_is_unfinished);
        self.driver_pace.unfinished = unfinished.then(|| Instant::now() + FOLLOW_UPS[0]);
        let now = self.driver_state();
        if now != before {
            match &now {
                DriverState::Complete => log::info("plan full: the driver's functions are hooked"),
                DriverState::NotLoaded => log::info("plan lean: the driver has been unloaded"),
                DriverState::InPart(why) => log::warning(&format!("plan lean: {why}")),
                DriverState::NotAsked | DriverState::Impossible(_) => {}
            }
        }
    }

    /// How far the driver's own functions are followed.
    pub(super) fn driver_state(&self) -> DriverState {
        self.source.as_ref().map_or(DriverState::NotAsked, EventSource::driver_state)
    }

    /// The plan in effect, as answers name it.
    pub(super) fn plan_word(&self) -> &'static str {
        match (&self.source, self.driver_state()) {
            (None, _) => "snapshot",
            (Some(source), _) if source.follows_calls() => "exhaustive",
            (Some(_), DriverState::Complete) => "full",
            (Some(_), _) => "lean",
        }
    }
}

/// Says what became of the hooks at the driver's functions. Errors: they were demanded and are not to be had.
pub(super) fn judge(plan: Plan, state: &DriverState) -> anyhow::Result<()> {
    match (plan, state) {
        (Plan::Full, DriverState::Impossible(why)) => {
            anyhow::bail!("plan full: {why}; use --plan auto, which then does without")
        }
        (Plan::Full, DriverState::NotLoaded) => {
            log::info("plan full: the driver is not loaded; its functions are hooked when it is");
        }
        (_, DriverState::InPart(why)) => {
            log::warning(&format!("plan lean, as plan full is not complete: {why}"))
        }
        _ => {}
    }
    Ok(())
}

/// Says what plan `exhaustive` costs. Errors: its hooks are not to be had.
pub(super) fn judge_calls(source: &EventSource) -> anyhow::Result<()> {
    if let Some(hook) =
        source.hooks().iter().find(|hook| hook.hook.starts_with("sys_") && !hook.works.is_yes())
    {
        let why = match (&hook.works, &hook.detail) {
            (Answer::Denied(why), _) | (_, Some(why)) => why,
            _ => "this kernel does not have it",
        };
        anyhow::bail!(
            "plan exhaustive: no hook at {}: {why}; use --plan auto, which does without",
            hook.hook
        );
    }
    log::warning(&format!("plan exhaustive: {COST_OF_CALLS}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_followed_up_a_few_times_and_then_left_alone() {
        let start = Instant::now();
        let mut pace = DriverPace::default();
        assert!(!pace.take(start));
        pace.announced(start);
        assert!(!pace.take(start), "not before it is due");
        let mut now = start;
        let mut times = 0;
        while let Some(due) = pace.due() {
            now = due;
            assert!(pace.take(now));
            times += 1;
        }
        assert_eq!(times, FOLLOW_UPS.len());
        assert!(now - start >= Duration::from_secs(1), "a driver takes its time to come up");
        pace.announced(now);
        assert!(pace.due().is_some());
    }
}
