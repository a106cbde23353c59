//! The daemon: what it knows that no look can see, and that it survives what may happen to it.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gpu_tracer_tests::harness::{Daemon, Device, Play, Tracer, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// A daemon first, then the scenario.
fn stage(device: Device, name: &str, arguments: &[&str]) -> (Daemon, Play) {
    let daemon = Daemon::start(&device);
    (daemon, Play::stage_on(device, name, arguments))
}

#[test]
fn what_is_opened_under_its_eyes_has_an_opener_with_name_and_command_line() {
    let (daemon, play) = stage(Device::one(), "plain", &[]);
    let pid = play.truth.holders[0].pid;
    let answer = daemon.check(&play);
    let ids = &answer.only(pid).devices[0].files;
    let file = answer.report.files.iter().find(|file| ids.contains(&file.id)).expect("its file is listed");
    let opener = file.opener.as_ref().unwrap_or_else(|| panic!("no opener\n{}", answer.text));
    assert_eq!((opener.pid, opener.alive), (pid, true), "{}", answer.text);
    assert!(!opener.comm.is_empty() && file.opened_at.is_some(), "{}", answer.text);
    // The command line is read on the side.
    daemon.answer_when("an opener with a command line", |answer| {
        answer.report.files.iter().any(|file| {
            file.opener
                .as_ref()
                .is_some_and(|opener| opener.pid == pid && opener.cmdline.contains("scenario"))
        })
    });
}

#[test]
fn b7_history_shows_that_the_receiver_got_it_from_the_broker_and_the_broker_keeps_it() {
    let device = Device::one();
    let daemon = Daemon::start(&device);
    let mut watch = daemon.watch();
    let mut play = Play::stage_on(device, "broker", &[]);
    let (broker, receiver) = (play.truth.holders[0].pid, play.truth.holders[1].pid);
    let answer = daemon.holders();
    assert!(answer.only(receiver).why.iter().any(|why| why == "passed"), "{}", answer.text);
    assert!(!answer.only(broker).why.iter().any(|why| why == "passed"), "{}", answer.text);
    watch.await_line("that the broker handed it over", |line| {
        line["what"] == "handed-over"
            && line["process"]["pid"] == receiver
            && line["from"][0]["pid"] == broker
    });
    play.next("");
    daemon.check(&play);
    watch.await_line("that the receiver let go of it", |line| {
        line["what"] == "closed" && line["process"]["pid"] == receiver && line["cause"] == "exit"
    });
}

#[test]
fn b12_the_opener_is_named_as_dead_and_the_innocent_with_its_pid_is_not_accused() {
    let (daemon, play) = stage(Device::one(), "pid-reuse", &[]);
    let answer = daemon.check(&play);
    let heir = answer.only(play.truth.holders[0].pid);
    assert!(heir.why.iter().any(|why| why == "inherited"), "{}", answer.text);
    let file = answer.report.files.iter().find(|file| heir.devices[0].files.contains(&file.id)).unwrap();
    let opener = file.opener.as_ref().unwrap_or_else(|| panic!("no opener\n{}", answer.text));
    assert_eq!((opener.pid, opener.alive), (play.truth.innocents[0].pid, false), "{}", answer.text);
}

#[test]
fn b12_an_orphan_adopted_by_a_subreaper_is_known_to_have_inherited() {
    let (daemon, play) = stage(Device::one(), "subreaper", &[]);
    let answer = daemon.check(&play);
    let orphan = answer.only(play.truth.holders[0].pid);
    assert!(orphan.why.iter().any(|why| why == "inherited"), "{}", answer.text);
}

#[test]
fn b3_heirs_of_a_dead_parent_are_known_to_have_inherited() {
    let (daemon, play) = stage(Device::two(), "inherited", &["4"]);
    let answer = daemon.check(&play);
    for heir in &play.truth.holders {
        let named = answer.only(heir.pid);
        assert!(named.why.iter().any(|why| why == "inherited"), "{}", answer.text);
    }
}

#[test]
fn b18_a_half_exited_holder_is_named_with_the_file_it_has_not_released() {
    let (daemon, mut play) = stage(Device::nobodys(), "half-exited", &[]);
    let pid = play.truth.half_exited[0];
    // Whoever asks without a daemon cannot know.
    let alone = Tracer::new(&play.device).holders();
    assert_eq!((alone.status, alone.of(pid).count()), (3, 0), "{}", alone.text);
    let answer = daemon.answer_when("the half-exited holder", |answer| answer.of(pid).count() == 1);
    assert_eq!(answer.status, 1, "{}", answer.text);
    let holder = answer.only(pid);
    assert_eq!((holder.tid, holder.exiting, holder.state.as_str()), (pid, true, "D"), "{}", answer.text);
    assert!(holder.why.iter().any(|why| why == "exiting"), "{}", answer.text);
    let closing = holder.closing.as_deref().unwrap_or_default();
    // The scenario says which: the file that was opened before the device.
    let told = format!("descriptor {}, a file on a FUSE file system", blocking(&play));
    assert!(holder.stack.is_empty() || closing.starts_with(&told), "what blocks it\n{}", answer.text);
    let held = &holder.devices[0];
    assert_eq!((held.fds, held.dropping), (0, 1), "{}", answer.text);
    let file = answer.report.files.iter().find(|file| held.files.contains(&file.id)).unwrap();
    assert_eq!((file.state.as_str(), file.unexplained), ("detached", 0), "{}", answer.text);
    assert!(
        file.since.is_some() && file.opener.as_ref().is_some_and(|opener| opener.pid == pid),
        "{}",
        answer.text
    );
    assert!(answer.report.coverage.complete, "it is known, so nothing is missing\n{}", answer.text);
    let table = String::from_utf8(daemon.printed("table").out).unwrap();
    assert!(table.contains(&pid.to_string()), "{table}");

    play.next("");
    let free = daemon.answer_when("an answer that nobody holds it", |answer| answer.report.files.is_empty());
    assert_eq!((free.status, free.of(pid).count()), (0, 0), "{}", free.text);
}

/// The descriptor in whose close the scenario's process is blocked.
fn blocking(play: &Play) -> u32 {
    let notes = play.truth.notes.join("; ");
    let (_, rest) = notes.split_once("closing descriptor ").unwrap_or_else(|| panic!("which? {notes}"));
    rest.split(';').next().and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{notes}"))
}

#[test]
fn b18_a_daemon_started_too_late_says_that_it_cannot_know() {
    let play = Play::stage_on(Device::nobodys(), "half-exited", &[]);
    let daemon = Daemon::start(&play.device);
    let answer = daemon.holders();
    assert_eq!(answer.status, 3, "{}", answer.text);
    assert!(answer.misses("half-exited-task"), "{}", answer.text);
}

#[test]
fn two_daemons_do_not_share_a_socket() {
    let device = Device::one();
    let daemon = Daemon::start(&device);
    let second = std::process::Command::new(Tracer::program())
        .args(["run", "--config", "/dev/null", "--state-dir", "/nonexistent/never", "--socket"])
        .arg(daemon.socket())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{error}");
    assert!(error.contains("another gpu-tracer daemon is running") && error.contains("--socket"), "{error}");
    // And the first still answers.
    assert!(daemon.get("/v1/status").is_some(), "{}", daemon.said());
}

#[test]
fn on_sigterm_it_ends_and_takes_its_socket_with_it_and_on_sighup_it_reads_its_configuration() {
    let device = Device::one();
    let mut daemon = Daemon::start(&device);
    daemon.signal(libc::SIGHUP);
    eventually("the configuration read again", SOON, || daemon.said().contains("read again").then_some(()));
    assert!(daemon.get("/v1/status").is_some(), "{}", daemon.said());
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.await_end(), Some(0), "{}", daemon.said());
    assert!(!daemon.socket().exists());
}

#[test]
fn two_daemons_do_not_share_hooks() {
    let device = Device::one();
    let daemon = Daemon::start(&device);
    let pins = daemon.socket().with_file_name("pins");
    let dir = tempfile::tempdir().unwrap();
    let second = std::process::Command::new(Tracer::program())
        .args(["run", "--config", "/dev/null", "--plan", "lean"])
        .args(device.options())
        .arg("--socket")
        .arg(dir.path().join("d.sock"))
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .arg("--pin-dir")
        .arg(&pins)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{error}");
    assert!(error.contains("in use by another gpu-tracer"), "{error}");
    assert!(!dir.path().join("d.sock").exists(), "it takes its socket with it");
    assert!(daemon.get("/v1/status").is_some(), "{}", daemon.said());
}

#[test]
fn on_sighup_other_devices_are_watched_and_a_configuration_with_a_mistake_changes_nothing() {
    let device = Device::one();
    let daemon = Daemon::start_configured(&device, "devices = ['1:5=nvidia0']\n");
    let watches = |device: &str| {
        let answer = daemon.get(&format!("/v1/holders?device={device}")).unwrap();
        answer["error"].is_null()
    };
    assert!(watches("1:5=nvidia0") && !watches("1:3=nvidia1"));
    let said = daemon.configure("devices = ['1:5=nvidia0', '1:3=nvidia1']\n");
    assert!(said.contains("configuration read again"), "{said}");
    assert!(watches("1:5=nvidia0") && watches("1:3=nvidia1"));
    // It sees who holds the new one, and opens of it from then on.
    let own = std::process::id();
    let kept = std::fs::File::open("/dev/null").unwrap();
    let opened = daemon.answer_when("the new device", |answer| {
        answer.of(own).any(|holder| holder.devices.iter().any(|held| held.device == "nvidia1"))
    });
    assert_eq!(opened.report.plan, "lean");
    drop(kept);

    let said = daemon.configure("devises = ['1:5=nvidia0']\n");
    assert!(said.contains("stays as it is") && said.contains("`devices` meant"), "{said}");
    assert!(watches("1:3=nvidia1"), "what held before still holds");
    let said = daemon.configure("devices = ['nonsense']\n");
    assert!(said.contains("stays as it is"), "{said}");
    assert!(watches("1:3=nvidia1"));

    let said = daemon.configure("devices = ['1:5=nvidia0']\nring-bytes = 65536\nplan = 'snapshot'\n");
    assert!(said.contains("ring-bytes has changed and takes effect when the daemon is restarted"), "{said}");
    assert!(said.contains("plan has changed"), "{said}");
    assert!(watches("1:5=nvidia0") && !watches("1:3=nvidia1"));
    let forgotten = daemon.answer_when("that the device is of no interest any more", |answer| {
        answer.report.files.iter().all(|file| file.device != "nvidia1" && file.device != "1:3")
    });
    assert_eq!(forgotten.report.plan, "lean");
}

#[test]
fn on_sighup_another_group_sees_everything() {
    let (user, group) = (65533, 65532);
    let device = Device::one();
    let daemon = Daemon::start_configured(&device, "devices = ['1:5=nvidia0']\ngroup = '64999'\n");
    let play = Play::stage_on(device, "plain", &[]);
    let sees = || {
        let report = as_user(user, group, &daemon, "/v1/holders");
        let holders = report["holders"].as_array().unwrap();
        holders.iter().any(|holder| holder["pid"] == play.truth.holders[0].pid)
    };
    assert!(!sees());
    let said = daemon.configure(&format!("devices = ['1:5=nvidia0']\ngroup = '{group}'\n"));
    assert!(!said.contains("restarted"), "{said}");
    assert!(sees());
    daemon.configure("devices = ['1:5=nvidia0']\ngroup = '64999'\n");
    assert!(!sees());
}

#[test]
fn without_a_daemon_the_answer_is_the_same_and_says_where_it_comes_from() {
    let play = Play::stage("plain", &[]);
    let output = std::process::Command::new(Tracer::program())
        .arg("holders")
        .args(play.device.options())
        .args(["--format", "json", "--socket", "/nonexistent/socket"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), report["plan"].as_str()), (Some(1), Some("snapshot")), "{report:#}");
}

#[test]
fn a_daemon_that_watches_other_devices_is_not_believed_about_these() {
    let daemon = Daemon::start(&Device::one());
    let answer = daemon.get("/v1/holders?device=1%3A7%3Dnvidia7").unwrap();
    assert!(answer["error"].as_str().unwrap().contains("does not watch 1:7=nvidia7"), "{answer:#}");
}

#[test]
fn another_user_sees_own_processes_and_how_many_others_are_withheld() {
    let (daemon, play) = stage(Device::one(), "other-user", &[]);
    let _roots = Play::stage_on(Device::one(), "plain", &[]);
    let user = play.truth.holders[0].uid.unwrap();
    let report = as_user(user, user, &daemon, "/v1/holders");
    let pids: Vec<u64> =
        report["holders"].as_array().unwrap().iter().filter_map(|holder| holder["pid"].as_u64()).collect();
    assert!(pids.contains(&u64::from(play.truth.holders[0].pid)), "{report:#}");
    let others = report["holders"].as_array().unwrap().iter().any(|holder| holder["uid"] != user);
    assert!(!others, "{report:#}");
    let withheld =
        report["coverage"]["missing"].as_array().unwrap().iter().any(|missing| missing["what"] == "withheld");
    assert!(withheld && report["coverage"]["complete"] == false, "{report:#}");
}

/// Asks as another user.
fn as_user(user: u32, group: u32, daemon: &Daemon, target: &str) -> Value {
    let socket = daemon.socket();
    let request = format!("GET {target} HTTP/1.0\r\n\r\n");
    // In the kernel each thread has credentials of its own: a thread that makes the system calls itself changes nobody else's.
    let asking = std::thread::spawn(move || -> std::io::Result<String> {
        for (call, id) in [(libc::SYS_setresgid, group), (libc::SYS_setresuid, user)] {
            let id = i64::from(id);
            // SAFETY: the call takes three numbers.
            if unsafe { libc::syscall(call, id, id, id) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    let answer = asking.join().expect("the thread ends").expect("the daemon answers another user");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[test]
fn metrics_have_a_type_for_every_series_and_name_no_process() {
    let (daemon, play) = stage(Device::one(), "renamed-worker", &[]);
    daemon.check(&play);
    let page = daemon.text_of("/metrics").unwrap();
    assert!(page.contains("gpu_tracer_holders{device=\"nvidia0\"} "), "{page}");
    assert!(!page.contains("VLLM"), "{page}");
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(page.contains(&format!("# TYPE {name} ")), "{line}");
    }
}

#[test]
fn somebody_who_connects_and_says_nothing_keeps_nobody_from_asking() {
    let daemon = Daemon::start(&Device::one());
    let silent: Vec<UnixStream> = (0..50).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    let mut half = UnixStream::connect(daemon.socket()).unwrap();
    half.write_all(b"GET /v1/hol").unwrap();
    assert!(daemon.get("/v1/status").is_some(), "{}", daemon.said());
    assert_eq!(std::fs::metadata(daemon.socket()).unwrap().mode() & 0o777, 0o666);
    drop((silent, half));
}

#[test]
fn the_service_manager_is_told_when_it_is_ready_that_it_lives_and_that_it_stops() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let told = move |wanted: &str| {
        let mut heard = Vec::new();
        while !heard.iter().any(|message: &String| message.lines().any(|line| line == wanted)) {
            let mut buffer = [0; 4096];
            let length =
                manager.recv(&mut buffer).unwrap_or_else(|error| panic!("{error}: {wanted} after {heard:?}"));
            heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
    };
    let path = path.to_str().unwrap();
    let device = Device::one();
    let environment = [("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "400000")];
    let mut daemon = Daemon::start_with(&device, &environment);
    told("READY=1");
    told("WATCHDOG=1");
    told("WATCHDOG=1");
    daemon.signal(libc::SIGHUP);
    told("READY=1");
    daemon.signal(libc::SIGTERM);
    told("STOPPING=1");
    assert_eq!(daemon.await_end(), Some(0), "{}", daemon.said());
}

#[test]
fn a_configuration_with_an_unknown_key_is_refused_with_the_nearest_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    std::fs::write(&path, "sokcet = '/run/x'\n").unwrap();
    let refused =
        std::process::Command::new(Tracer::program()).args(["run", "--config"]).arg(&path).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("sokcet") && error.contains("`socket`"), "{error}");
}

#[test]
fn the_documented_configuration_is_one_that_is_understood() {
    let text = include_str!("../../deploy/gpu-tracer.toml");
    // Every key of it, as if somebody took the comment signs away.
    let keys: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| line.starts_with("[[") || line.contains(" = ") && !line.starts_with(' '))
        .collect();
    assert!(keys.len() >= 8, "{keys:?}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let pins = dir.path().join("pins");
    std::fs::write(&path, keys.join("\n")).unwrap();
    // There is nothing to take away, which is said only if the configuration was understood.
    let output = std::process::Command::new(Tracer::program())
        .args(["run", "--unpin", "--config"])
        .arg(&path)
        .arg("--pin-dir")
        .arg(&pins)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
