//! Tasks inside the driver's open. Until it returns there is a file that is in no table, and that holds the device all the same.
//!
//! A daemon that follows the driver was told of them, unless they were in there before it was. For everybody else the kernel stacks
//! of tasks in uninterruptible sleep tell, where they may be read.

use std::path::Path;

use crate::model::{Missing, Snapshot, Task, TaskState};
use crate::process::stack::{STACK_LIMIT, parse_stack};
use crate::process::{ProcDir, ProcFs};

/// Tasks whose stacks are read. More of them in this state at the same time wait for something else.
const MOST_TASKS: usize = 64;
/// Entry points of the driver's opens, all releases from 470 to 595.
const OPENS: [&str; 8] = [
    "nvidia_open",
    "nvidia_frontend_open",
    "uvm_open_entry",
    "uvm_open",
    "uvm_tools_open_entry",
    "nvkms_open",
    "nv_cap_drv_open",
    "nv_caps_imex_open",
];

/// Those that were inside when the snapshot was taken, and are so still.
pub(crate) fn opening_tasks(snapshot: &Snapshot) -> Vec<Task> {
    let proc = ProcFs::host();
    let waiting = snapshot
        .tasks
        .iter()
        .filter(|task| task.state == TaskState::Uninterruptible && !task.kernel_thread && !task.exiting);
    let stack = |task: &Task| {
        let directory: ProcDir = proc.process(task.tgid).ok()?.below(format!("task/{}", task.tid)).ok()?;
        directory.read(Path::new("stack"), STACK_LIMIT).ok()
    };
    waiting
        .take(MOST_TASKS)
        .filter(|task| stack(task).is_some_and(|text| is_opening(&parse_stack(&text))))
        .cloned()
        .collect()
}

/// Is one of these frames the driver's open? They are `FUNCTION [MODULE]`.
fn is_opening(frames: &[String]) -> bool {
    frames.iter().any(|frame| {
        let (function, module) = frame.split_once(' ').unwrap_or((frame, ""));
        module.starts_with("[nvidia") && OPENS.contains(&function)
    })
}

/// What is to be said of one.
pub(crate) fn opening_task(task: &Task) -> Missing {
    let of = if task.is_leader() { String::new() } else { format!(" of PID {}", task.tgid) };
    Missing {
        what: "opening",
        why: format!(
            "task {}{of} is inside the driver's open: what it opens is in no table yet (cat /proc/{}/stack shows where it waits)",
            task.tid, task.tid
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drivers_own_open_counts() {
        let frames = |text: &str| parse_stack(text.as_bytes());
        let opening =
            "[<0>] __down+0x5f/0xa0\n[<0>] nvidia_open+0x1c/0x90 [nvidia]\n[<0>] chrdev_open+0xc4/0x230\n";
        assert!(is_opening(&frames(opening)));
        assert!(!is_opening(&frames(&opening.replace("nvidia_open", "nvidia_close"))));
        assert!(!is_opening(&frames(&opening.replace("[nvidia]", "[other]"))));
        assert!(!is_opening(&frames("")));
    }
}
