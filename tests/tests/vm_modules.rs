//! What the kernel counts of the driver's modules, against the files that were found: in a guest with the stand-in driver,
//! since ordinary kernels count and some cannot.

use std::fs::File;
use std::time::Duration;

use gpu_tracer_tests::harness::{Answer, Daemon, Device, Play, Tracer, eventually};
use gpu_tracer_tests::incident::driver;

const SOON: Duration = Duration::from_secs(30);
/// What `coverage.missing` calls references that no file accounts for.
const UNACCOUNTED: &str = "module-references";

/// The driver's knobs, and the memory that a GPU shows when nobody uses it.
struct Knobs {
    _all: driver::Knobs,
}

fn standin_driver() -> Option<Knobs> {
    driver::Knobs::take("vm_modules").map(|all| Knobs { _all: all })
}

impl Drop for Knobs {
    fn drop(&mut self) {
        let _ = driver::tell("baseline 3 0");
    }
}

/// Asks without a daemon until nobody else has the devices open.
fn quiet() -> Answer {
    let tracer = Tracer::new(&Device::standin());
    eventually("nobody else", SOON, || Some(tracer.holders()).filter(|answer| answer.report.files.is_empty()))
}

#[test]
fn files_of_every_device_account_for_what_the_kernel_counts() {
    let Some(_knobs) = standin_driver() else { return };
    quiet();
    let nodes = ["nvidia3", "nvidia4", "nvidiactl", "nvidia-uvm", "nvidia-modeset"];
    let held: Vec<File> = nodes
        .iter()
        .flat_map(|name| [name, name])
        .map(|name| File::options().read(true).write(true).open(format!("/dev/{name}")).expect(name))
        .collect();
    let copy = held[4].try_clone().expect("a second descriptor of one file");
    let answer = Tracer::new(&Device::standin()).holders();
    assert_eq!((answer.status, answer.report.files.len()), (1, held.len()), "{}", answer.text);
    assert!(answer.report.coverage.complete, "{}", answer.text);
    drop(copy);
}

#[test]
fn a_kernel_client_of_the_driver_keeps_an_answer_from_being_free() {
    let Some(_knobs) = standin_driver() else { return };
    let free = quiet();
    assert_eq!(free.status, 0, "{}", free.text);
    let daemon = Daemon::of_driver("lean");
    driver::tell("kernel-client on").expect("the driver listens");
    for answer in [Tracer::new(&Device::standin()).holders(), daemon.holders()] {
        assert_eq!((answer.status, answer.misses(UNACCOUNTED)), (3, true), "{}", answer.text);
        assert!(answer.text.contains("module nvidia has 1 reference without"), "{}", answer.text);
    }
    // One that is idle is free whatever the module counts; of one with memory it cannot be said.
    driver::tell("baseline 3 2000").expect("the driver listens");
    let why = Tracer::new(&Device::standin()).run("why", &[]);
    let told = String::from_utf8_lossy(&why.out);
    assert_eq!(why.status, 3, "{told}");
    assert!(told.contains("module nvidia has 1 reference"), "the reason is given\n{told}");
    assert!(told.contains("GPU 1 is free"), "{told}");
    println!("{told}");
    driver::tell("baseline 3 0").expect("the driver listens");

    driver::tell("kernel-client off").expect("the driver listens");
    for answer in [Tracer::new(&Device::standin()).holders(), daemon.holders()] {
        assert_eq!((answer.status, answer.report.coverage.complete), (0, true), "{}", answer.text);
    }
}

#[test]
fn a_half_exited_task_that_has_nothing_of_the_driver_is_no_reason_for_doubt() {
    let Some(_knobs) = standin_driver() else { return };
    quiet();
    // It keeps a file of another driver, which nobody counts.
    let play = Play::stage_on(Device::nobodys(), "half-exited", &[]);
    let of_that = Tracer::new(&play.device).holders();
    assert_eq!((of_that.status, of_that.misses("half-exited-task")), (3, true), "{}", of_that.text);
    let of_the_driver = Tracer::new(&Device::standin()).holders();
    assert_eq!(of_the_driver.status, 0, "the module is referred to by nobody\n{}", of_the_driver.text);
    let daemon = Daemon::of_driver("lean").holders();
    assert_eq!(daemon.status, 0, "{}", daemon.text);
}
