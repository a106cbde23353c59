//! Files looked at again.

use super::{PATIENCE, Shell, devices, is_root, iterators};
use crate::{
    model::{FileKey, Via},
    probe::{Iterators, events::RememberedFile},
};

/// A file that is open, closed, and whose memory is used for something else.
#[test]
fn a_remembered_file_is_known_again_and_known_to_be_gone() {
    if !is_root() {
        return;
    }
    let mut iterators = iterators();
    let mut shell = Shell::new();
    shell.run("exec 9</dev/full");
    let of_shell = |iterators: &mut Iterators, pid| {
        let snapshot = iterators.snapshot(&devices(), PATIENCE).expect("snapshot");
        let table = snapshot.tasks.iter().find(|task| task.tid == pid).and_then(|task| task.table);
        let via = |via: &Via| matches!(via, Via::Fd { table: of, .. } if Some(*of) == table);
        let key = snapshot.references.iter().find(|reference| via(&reference.via)).expect("a reference").file;
        RememberedFile::from(snapshot.files.iter().find(|file| file.key == key).expect("a file"))
    };
    let file = of_shell(&mut iterators, shell.pid());
    assert_ne!(file.identity, 0);
    let check = |iterators: &mut Iterators, file| iterators.recheck(&[file]).expect("recheck")[0];
    let now = check(&mut iterators, file);
    assert_eq!((now.still_same, now.count, now.identity), (true, Some(1), file.identity));
    shell.run("exec 8<&9");
    assert_eq!(check(&mut iterators, file).count, Some(2));
    let unknown = RememberedFile { identity: 0, ..file };
    assert_eq!(check(&mut iterators, unknown), check(&mut iterators, file));
    let other = RememberedFile { identity: file.identity ^ 2, ..file };
    assert_eq!((check(&mut iterators, other).still_same, check(&mut iterators, other).count), (false, None));
    shell.run("exec 8<&-; exec 9<&-");
    let now = check(&mut iterators, file);
    assert_eq!((now.still_same, now.count), (false, None), "closed: {now:?}");
    // Not an address of anything.
    let nothing = RememberedFile { key: FileKey(0x1000), ..file };
    assert_eq!(
        (check(&mut iterators, nothing).count, iterators.recheck(&[]).expect("recheck").len()),
        (None, 0)
    );
}
