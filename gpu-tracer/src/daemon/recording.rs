//! What the core tells the journal. Nothing here waits for the disk, and no trouble with it stops the daemon.

use std::path::Path;

use super::core::Core;
use super::log;
use crate::journal::{self, GivenVerdict, Health, Options, State};
use crate::kernel::{self, boot_now};
use crate::model::change::Change;
use crate::model::{GpuMemory, ProcessId};

impl Core {
    /// Opens the journal, if one is wanted, and numbers files from its last on.
    pub(super) fn open_journal(&mut self) {
        let Some(retention) = self.settings.retention else { return self.number_files(None) };
        let Some(boot_id) = kernel::boot_id(Path::new("/")) else {
            log::warning("no history is kept: this boot has no identity; mount /proc");
            return self.number_files(None);
        };
        let line = |path: &str| {
            std::fs::read_to_string(path)
                .ok()
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty())
        };
        let offset_ns = i64::try_from(self.clock.boot_to_wall_offset).unwrap_or(i64::MAX);
        let options = Options {
            retention,
            plan: self.plan_word().to_owned(),
            kernel: line("/proc/sys/kernel/osrelease"),
            host: line("/proc/sys/kernel/hostname"),
            ..Options::new(&self.settings.state_dir, &boot_id, boot_now(), offset_ns)
        };
        match journal::open(options) {
            Ok(opened) => {
                self.number_files(Some((&opened.left, opened.last_file)));
                self.recorder = Some(opened.recorder);
                self.write_down_gpus();
            }
            // What happens is still told; only nobody will know it later.
            Err(error) => {
                let path = self.settings.state_dir.join(journal::NAME);
                log::warning(&format!("no history is kept: {}: {error}", path.display()));
                self.journal_problem = Some(error.to_string());
                self.number_files(None);
            }
        }
        self.say_how_the_journal_is();
    }

    /// Has everything written that there is.
    pub(super) fn close_journal(&mut self) {
        if let Some(recorder) = self.recorder.take()
            && !recorder.close()
        {
            log::warning("the disk takes too long: the end of the history is not written");
        }
    }

    pub(super) fn write_down(&mut self, changes: &[Change]) {
        if let Some(recorder) = &mut self.recorder {
            recorder.changes(changes, &self.ledger, &self.devices.table, &self.uids);
        }
    }

    pub(super) fn write_down_description(&mut self, process: ProcessId) {
        if let Some(recorder) = &mut self.recorder {
            recorder.described(process, boot_now(), &self.ledger, &self.uids);
        }
    }

    pub(super) fn write_down_gpus(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.discovered(&self.devices.gpus);
        }
    }

    pub(super) fn write_down_life(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.alive(boot_now(), self.clock.boot_to_wall_offset);
        }
        self.want_memory();
        self.say_how_the_journal_is();
    }

    pub(super) fn write_down_memory(&mut self, at_ns: u64, memory: &[GpuMemory]) {
        let Some(recorder) = &mut self.recorder else { return };
        for gpu in memory {
            recorder.memory(at_ns, gpu.gpu, gpu.used_mib, gpu.total_mib);
        }
    }

    pub(super) fn write_down_verdicts(&mut self, at_ns: u64, verdicts: Vec<GivenVerdict>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.verdicts(at_ns, verdicts);
        }
    }

    /// Memory is worth measuring while somebody holds a device, and once after that.
    pub(super) fn want_memory(&mut self) {
        let held = !self.ledger.is_idle();
        if held || self.was_held {
            self.sampler.want();
        }
        self.was_held = held;
    }

    /// Just after a look: all that is held, if the journal has lost track of it.
    pub(super) fn write_down_standing(&mut self) {
        let Some(recorder) = &mut self.recorder else { return };
        if recorder.wants_standing() {
            let view = self.ledger.view();
            recorder.standing(&view, &self.ledger, &self.devices.table, &self.uids, boot_now());
        }
    }

    /// For those who ask how the daemon is doing.
    pub(super) fn journal_health(&self) -> Health {
        let off = || Health {
            path: self.settings.state_dir.join(journal::NAME).display().to_string(),
            problem: self.journal_problem.clone(),
            ..Health::default()
        };
        self.recorder.as_ref().map_or_else(off, journal::Recorder::health)
    }

    /// Trouble, and its end, are worth a line each.
    fn say_how_the_journal_is(&mut self) {
        let Some(recorder) = &self.recorder else { return };
        let health = recorder.health();
        if health.moved_aside != self.journal_moved {
            if let Some(aside) = &health.moved_aside {
                log::warning(&format!(
                    "the journal was broken: it is kept as {aside}, and a new one is begun"
                ));
            }
            self.journal_moved.clone_from(&health.moved_aside);
        }
        if health.problem != self.journal_problem {
            match &health.problem {
                Some(problem) => log::warning(&format!("history is not written for now: {problem}")),
                None if health.state == State::Writing => log::info("history is written again"),
                None => {}
            }
            self.journal_problem = health.problem;
        }
    }
}
