//! Which file a device is opened as.

use super::{PATIENCE, Shell, attach, devices, is_root, iterators, until};
use crate::{
    model::{FileKey, Via, event::EventKind},
    probe::events::{EventSource, Options},
};

/// The files of the next touches by a task, so many.
fn files_of_touches(source: &mut EventSource, tid: u32, count: usize) -> Vec<Option<FileKey>> {
    let by = |kind: &EventKind| matches!(kind, EventKind::DeviceTouched { task, .. } if task.tid == tid);
    let mut files = Vec::new();
    while files.len() < count {
        files.extend(until(source, by).iter().filter_map(|event| match event.kind {
            EventKind::DeviceTouched { task, file, .. } if task.tid == tid => Some(file),
            _ => None,
        }));
    }
    files
}

#[test]
fn a_touch_tells_the_file_that_the_device_is_opened_as() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    let mut shell = Shell::new();
    shell.run("exec 7</dev/full; exec 8</dev/full; exec 8</dev/full; exec 9</dev/full");
    let pid = shell.pid();
    let told = files_of_touches(&mut source, pid, 4);
    let snapshot = iterators().snapshot(&devices(), PATIENCE).expect("snapshot");
    let table = snapshot.tasks.iter().find(|task| task.tid == pid).and_then(|task| task.table);
    let at = |wanted: u32| {
        let via = |via: &Via| matches!(via, Via::Fd { table: of, fd } if Some(*of) == table && *fd == wanted);
        snapshot.references.iter().find(|reference| via(&reference.via)).map(|reference| reference.file)
    };
    // The second open closes the first file of descriptor 8.
    assert_eq!([told[0], told[2], told[3]], [at(7), at(8), at(9)]);
    assert!(told.iter().all(Option::is_some) && told[0] != told[1], "{told:?}");
}

#[test]
fn a_touch_that_opens_nothing_tells_no_file() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    // What the stack remembers of an open must not be taken for one.
    drop(std::fs::File::open("/dev/full").expect("opens"));
    rustix::fs::access("/dev/full", rustix::fs::Access::READ_OK).expect("may be read");
    let told = files_of_touches(&mut source, tid, 2);
    assert!(told[0].is_some() && told[1].is_none(), "{told:?}");
}
