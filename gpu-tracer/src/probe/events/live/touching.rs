//! Which file a device is opened as.

use super::{PATIENCE, Shell, attach, devices, is_root, iterators, touches_by, until};
use crate::{
    model::{FileKey, Via, event::EventKind},
    probe::events::Options,
};

#[test]
fn a_touch_tells_the_file_that_the_device_is_opened_as() {
    if !is_root() {
        return;
    }
    let mut source = attach(&Options::default());
    let mut shell = Shell::new();
    shell.run("exec 7</dev/full; exec 8</dev/full; exec 8</dev/full; test -r /dev/full; exec 9</dev/full");
    let pid = shell.pid();
    let mut told: Vec<Option<FileKey>> = Vec::new();
    while told.len() < 5 {
        let events = until(
            &mut source,
            |kind| matches!(kind, EventKind::DeviceTouched { task, .. } if task.process.tgid == pid),
        );
        told.extend(events.iter().filter(|event| !touches_by(std::slice::from_ref(event), pid).is_empty()).map(
            |event| {
                let EventKind::DeviceTouched { file, .. } = event.kind else { unreachable!() };
                file
            },
        ));
    }
    let snapshot = iterators().snapshot(&devices(), PATIENCE).expect("snapshot");
    let table = snapshot.tasks.iter().find(|task| task.tid == pid).and_then(|task| task.table);
    let at = |wanted: u32| {
        let via = |via: &Via| matches!(via, Via::Fd { table: of, fd } if Some(*of) == table && *fd == wanted);
        snapshot.references.iter().find(|reference| via(&reference.via)).map(|reference| reference.file)
    };
    // The first file of descriptor 8 is closed by the second; `access(2)` opens none.
    assert_eq!([told[0], told[2], told[3], told[4]], [at(7), at(8), None, at(9)]);
    assert!(told[1].is_some() && told[0] != told[1] && told[0].is_some(), "{told:?}");
}
