//! Names that processes chose for themselves.

use serde_json::json;

use super::*;
use crate::model::change::ProcessDescription;

#[test]
fn names_come_back_as_they_went_in_whatever_they_are() {
    let names: [&[u8]; 6] = [
        b"'; DROP TABLE event; --",
        b"\x1b[2J\x07",
        b"\xff\xfe\x00z",
        "\u{202e}gnp.exe".as_bytes(),
        b"</script><b>",
        b"{\"a\":1}",
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let mut world = World::default();
    for tgid in 10..16 {
        world.add(tgid, 1, "x", &[u64::from(tgid)]);
    }
    let mut snapshot = world.snapshot(1_010 * MS);
    for (task, name) in snapshot.tasks.iter_mut().zip(names) {
        task.comm = raw(name);
    }
    desk.look(&snapshot);
    for (tgid, name) in (10..16).zip(names) {
        let description =
            ProcessDescription { cmdline: raw(name), exe: Some(raw(name)), cgroup: Some(raw(name)) };
        desk.ledger.describe(process(tgid), 1_011 * MS, description);
        let Desk { recorder, ledger, uids, .. } = &mut desk;
        recorder.described(process(tgid), 1_011 * MS, ledger, uids);
    }
    desk.recorder.alive(1_020 * MS, i128::from(BOOTED));
    desk.close();
    let reader = read(dir.path());
    let held = reader.at(wall(1_015 * MS), &everything(), None).unwrap().holdings;
    assert_eq!(held.len(), names.len());
    for (pid, name) in (10..16).zip(names) {
        let held = held.iter().find(|held| held.process.pid == pid).unwrap();
        let expected = Some(raw(name));
        assert_eq!(Some(held.process.comm.clone()), expected, "comm");
        assert_eq!(held.process.cmdline, expected, "cmdline");
        assert_eq!((held.exe.clone(), held.cgroup.clone()), (expected.clone(), expected), "exe and cgroup");
    }
}

#[test]
fn sql_of_the_user_cannot_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = Desk::open(options(dir.path(), "boot-1", 1_000 * MS));
    let mut world = World::default();
    world.add(10, 1, "python3", &[5]);
    desk.look(&world.snapshot(1_010 * MS));
    desk.close();
    let reader = read(dir.path());
    for query in ["DELETE FROM event", "PRAGMA user_version = 7", "ATTACH '/tmp/x' AS x", "nonsense"] {
        assert!(reader.sql(query).is_err(), "{query}");
    }
    let reading = reader.sql("SELECT pid, comm, device, gpu FROM holdings").unwrap();
    assert_eq!(reading.columns, ["pid", "comm", "device", "gpu"]);
    assert_eq!(reading.rows, vec![json!([10, "python3", "nvidia5", 5]).as_array().unwrap().clone()]);
    let events = reader.sql("SELECT what, pid, comm FROM events").unwrap();
    assert_eq!(events.rows, vec![json!(["found", 10, "python3"]).as_array().unwrap().clone()]);
}
