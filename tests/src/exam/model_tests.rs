use super::super::expected::Expected;
use super::*;
use crate::truth::Counts;

#[test]
fn a_file_lives_as_long_as_a_descriptor_a_mapping_or_a_message_refers_to_it() {
    let mut model = Model::default();
    let task = model.start(10);
    let file = model.open(task, 3, "nvidia0", true, (0, 0));
    model.map(task, Mapped { at: 4096, pages: 1, file, part: false, offset: 0, since: 0 });
    model.socket_pair(task, (4, 5));
    let Object::Socket(end) = model.table(task)[&5].object else { panic!("a socket") };
    model.enqueue(end, vec![file]);
    assert_eq!(model.expected().files[&file].references, 3);
    model.close(task, 3);
    model.unmap(task, 4096);
    let expected = model.expected();
    assert_eq!(expected.files[&file].references, 1);
    assert_eq!(expected.holders[&10]["nvidia0"], Counts { in_flight: 1, files: 1, ..Counts::default() });
    model.close(task, 5);
    assert_eq!(model.expected(), Expected::default());
}

#[test]
fn a_table_shared_by_two_processes_is_one_reference_and_two_holders() {
    let mut model = Model::default();
    let task = model.start(10);
    let file = model.open(task, 3, "nvidia0", false, (0, 0));
    let child = model.fork(task, 11, Sharing { table: true, memory: false });
    let expected = model.expected();
    assert_eq!((expected.files[&file].references, expected.holders.len()), (1, 2));
    // Exec gives it a table of its own.
    assert_eq!(model.exec(child), Vec::<Id>::new());
    assert_eq!(model.expected().files[&file].references, 2);
    model.end_process(model.tasks[&task].process);
    let expected = model.expected();
    assert_eq!((expected.files[&file].references, expected.files[&file].pids.len()), (1, 1));
}

#[test]
fn exec_ends_the_other_threads_and_closes_what_it_must() {
    let mut model = Model::default();
    let leader = model.start(10);
    model.open(leader, 3, "nvidia0", true, (0, 0));
    let kept = model.open(leader, 4, "nvidia0", false, (0, 0));
    let thread = model.thread(leader);
    assert_eq!(model.exec(thread), [leader]);
    assert_eq!(model.expected().files.keys().copied().collect::<Vec<_>>(), [kept]);
    model.end_task(thread);
    assert_eq!(model.expected(), Expected::default());
}

#[test]
fn a_mapping_of_memory_that_two_processes_share_is_one_reference_and_two_holders() {
    let mut model = Model::default();
    let task = model.start(10);
    let file = model.open(task, 3, "nvidia0", false, (0, 0));
    let child = model.fork(task, 11, Sharing { table: false, memory: true });
    model.map(task, Mapped { at: 4096, pages: 1, file, part: false, offset: 0, since: 0 });
    let expected = model.expected();
    assert_eq!((expected.files[&file].references, expected.holders[&11]["nvidia0"].maps), (3, 1));
    model.end_process(model.tasks[&task].process);
    assert_eq!(model.expected().files[&file].references, 2);
    model.exec(child);
    assert_eq!(model.expected().files[&file].references, 1);
}

#[test]
fn a_holders_name_is_known_once_it_has_taken_one_and_until_it_replaces_its_program() {
    let mut model = Model::default();
    let task = model.start(10);
    model.open(task, 3, "nvidia0", false, (0, 0));
    assert!(model.expected().names.is_empty());
    model.rename(model.tasks[&task].process, "exam 1");
    assert_eq!(model.expected().names[&10], "exam 1");
    model.exec(task);
    assert!(model.expected().names.is_empty());
}
