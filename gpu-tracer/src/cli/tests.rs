use std::cell::RefCell;

use super::*;
use crate::model::doctor::{Ability, FoundDevice};
use crate::model::report::{Cost, Coverage, GpuReport, SCHEMA};

/// Answers that were thought up, and the questions that came.
struct Given {
    report: Report,
    asked: RefCell<Vec<Question>>,
}

impl Given {
    fn new(complete: bool) -> Self {
        let report = Report {
            cost: Cost::default(),
            schema: SCHEMA,
            taken_at: "2026-11-29T15:02:11.123Z".to_owned(),
            boot_id: String::new(),
            plan: "snapshot".to_owned(),
            coverage: Coverage { complete, missing: Vec::new() },
            gpus: vec![GpuReport::default()],
            files: Vec::new(),
            holders: Vec::new(),
        };
        Self { report, asked: RefCell::default() }
    }
}

impl Answers for Given {
    fn holders(&self, question: &Question) -> anyhow::Result<Report> {
        self.asked.borrow_mut().push(question.clone());
        if question.selectors.iter().any(|selector| selector == "99") {
            anyhow::bail!("GPU 99 does not exist\x1b[2J");
        }
        Ok(self.report.clone())
    }

    fn why(&self, question: &Question, pids: &[u32]) -> anyhow::Result<Diagnosis> {
        self.asked.borrow_mut().push(question.clone());
        let asked = pids.iter().map(|pid| (*pid, crate::diagnose::input::Resolved::Dead)).collect();
        let input = crate::diagnose::Input { asked, ..crate::diagnose::Input::of(self.report.clone()) };
        Ok(crate::diagnose::diagnose(&input))
    }

    fn wait(
        &self,
        question: &Question,
        options: &WaitOptions,
        say: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Waited> {
        say(&format!("{options:?}"));
        let diagnosis = self.why(question, &[])?;
        Ok(Waited { status: diagnosis.exit_status(), diagnosis, took: std::time::Duration::ZERO })
    }

    fn release(
        &self,
        question: &Question,
        options: &ReleaseOptions,
        talk: &mut dyn Talk,
    ) -> anyhow::Result<Diagnosis> {
        if !options.yes && !options.dry_run {
            talk.confirm("End them?")?;
        }
        self.why(question, &[])
    }

    fn doctor(&self, question: &Question) -> anyhow::Result<DoctorReport> {
        self.asked.borrow_mut().push(question.clone());
        let device = |device: &ExtraDevice| FoundDevice {
            name: device.name.clone(),
            number: device.number.to_string(),
            gpu: device.gpu(),
            source: "--device".to_owned(),
        };
        let devices = question.devices.iter().map(device).collect();
        let report = DoctorReport::new("6.1".to_owned(), "proc".to_owned(), Vec::new(), devices);
        Ok(DoctorReport { ability: Ability::Degraded, ..report })
    }
}

const SCREEN: Screen = Screen { width: None, color: false };

fn parsed(line: &str) -> Result<Cli, clap::Error> {
    parse(std::iter::once("gpu-tracer").chain(line.split_whitespace()).map(OsString::from))
}

fn output(line: &str, variable: Option<&str>, answers: &Given) -> anyhow::Result<(ExitStatus, String)> {
    let cli = parsed(line).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut out = Vec::new();
    let status = answer(&cli, variable.map(OsStr::new), answers, &SCREEN, &mut out)?;
    Ok((status, String::from_utf8(out)?))
}

#[test]
fn definitions_are_consistent() {
    command().debug_assert();
}

#[test]
fn the_question_is_what_was_written() {
    let given = Given::new(true);
    output("holders 0-3 GPU-8f6 --device 1:5=nvidia0 --device 1:3=kfd --socket /run/x", None, &given)
        .unwrap();
    output("--device 1:5=nvidia0 holders --standalone", Some("1:3=kfd"), &given).unwrap();
    output("holders", Some("1:5=nvidia0,1:3=kfd"), &given).unwrap();
    output("holders", Some(""), &given).unwrap();
    let device = |text: &str| text.parse::<ExtraDevice>().unwrap();
    let both = vec![device("1:5=nvidia0"), device("1:3=kfd")];
    let expected = [
        Question {
            selectors: vec!["0-3".to_owned(), "GPU-8f6".to_owned()],
            devices: both.clone(),
            socket: Some("/run/x".into()),
            standalone: false,
            ..Question::default()
        },
        Question { devices: vec![device("1:5=nvidia0")], standalone: true, ..Question::default() },
        Question { devices: both, ..Question::default() },
        Question::default(),
    ];
    assert_eq!(*given.asked.borrow(), expected);
}

#[test]
fn exit_status_is_that_of_the_answer() {
    assert_eq!(output("holders", None, &Given::new(true)).unwrap().0, ExitStatus::Free);
    let (status, text) = output("holders", None, &Given::new(false)).unwrap();
    assert_eq!(status, ExitStatus::Unknown);
    assert!(text.starts_with("Unknown: no holder of GPU 0 was seen"), "{text}");
    assert_eq!(output("doctor", None, &Given::new(true)).unwrap().0, ExitStatus::Held);
}

#[test]
fn the_diagnosis_decides_the_status_of_why_wait_and_release() {
    for command in ["why", "wait --timeout 0", "release --yes"] {
        assert_eq!(output(command, None, &Given::new(true)).unwrap().0, ExitStatus::Free, "{command}");
        assert_eq!(output(command, None, &Given::new(false)).unwrap().0, ExitStatus::Unknown, "{command}");
    }
    let (_, text) = output("why 0 --pid 7", None, &Given::new(true)).unwrap();
    assert!(text.starts_with("GPU 0 is free: ") && text.contains("PID 7 does not exist"), "{text}");
    let json = output("why --format json", None, &Given::new(true)).unwrap().1;
    assert_eq!(serde_json::from_str::<Diagnosis>(&json).unwrap().gpus[0].verdict.word(), "free");
    let csv = output("why --format csv,noheader", None, &Given::new(true)).unwrap().1;
    assert!(csv.starts_with("0,free,"), "{csv}");
    // A free GPU needs no words from `wait`.
    assert_eq!(output("wait", None, &Given::new(true)).unwrap().1, "");
}

#[test]
fn every_format_is_printed() {
    let given = Given::new(true);
    assert_eq!(output("holders --format csv,noheader", None, &given).unwrap().1, "");
    assert!(output("holders --format csv", None, &given).unwrap().1.starts_with("gpu,device,pid,"));
    let json = output("holders --format json", None, &given).unwrap().1;
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), given.report);
    let json = output("doctor --format json --device 1:5=nvidia0", None, &given).unwrap().1;
    assert_eq!(serde_json::from_str::<DoctorReport>(&json).unwrap().devices[0].gpu, Some(0));
}

#[test]
fn wrong_usage_is_status_2_and_help_is_status_0() {
    let status = |line: &str| parsed(line).err().map(|error| error.exit_code());
    let wrong = [
        "",
        "nonsense",
        "holders --format xml",
        "holders --format csv,header",
        "holders --device 1:5",
        "holders --standalone --socket /x",
        "doctor --format csv",
        "completions tcsh",
        "man nonsense",
    ];
    for line in wrong {
        assert_eq!(status(line), Some(2), "{line:?}");
    }
    for line in ["--help", "-h", "--version", "holders --help", "help holders"] {
        assert_eq!(status(line), Some(0), "{line:?}");
    }
    assert!(output("holders", Some("nonsense"), &Given::new(true)).is_err());
    let line = ["gpu-tracer", "holders", "99"].map(OsString::from);
    assert_eq!(run(line, None, &Given::new(true)), ExitStatus::Error);
}

/// A writer that fails as told.
struct Broken(io::ErrorKind);

impl io::Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_who_goes_away_changes_nothing_but_a_full_disk_is_an_error() {
    for line in ["holders", "holders --format json", "holders --format csv"] {
        let cli = parsed(line).unwrap();
        let answered = |kind| answer(&cli, None, &Given::new(false), &SCREEN, &mut Broken(kind));
        assert_eq!(answered(io::ErrorKind::BrokenPipe).unwrap(), ExitStatus::Unknown, "{line}");
        let error = answered(io::ErrorKind::StorageFull).unwrap_err();
        assert_eq!(error.to_string(), "the answer could not be written to standard output");
    }
    let completions = parsed("completions bash").unwrap();
    let status =
        answer(&completions, None, &Given::new(true), &SCREEN, &mut Broken(io::ErrorKind::BrokenPipe));
    assert_eq!(status.unwrap(), ExitStatus::Free);
}

#[test]
fn every_command_has_help_with_examples_and_a_man_page() {
    let program = command();
    let mut lines = vec!["--help".to_owned()];
    let mut pages = vec!["man".to_owned()];
    for name in program.get_subcommands().map(clap::Command::get_name) {
        lines.push(format!("{name} --help"));
        pages.push(format!("man {name}"));
    }
    for line in lines {
        let help = parsed(&line).unwrap_err().to_string();
        assert!(help.contains("Examples:"), "{line}: {help}");
    }
    for line in pages {
        let page = output(&line, None, &Given::new(true)).unwrap().1;
        for section in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH EXAMPLES"] {
            assert!(page.contains(section), "{line} has no {section}: {page}");
        }
    }
}

#[test]
fn the_help_of_holders() {
    // A fixed width: otherwise it would depend on the terminal that the test runs in.
    let wanted = command().term_width(100).try_get_matches_from(["gpu-tracer", "holders", "--help"]);
    insta::assert_snapshot!(wanted.unwrap_err().to_string());
}

#[test]
fn completions_know_commands_and_formats() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&format!("completions {shell}"), None, &Given::new(true)).unwrap().1;
        for word in ["holders", "doctor", "expand", "standalone"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
        if matches!(shell, "bash" | "zsh") {
            assert!(script.contains("csv,noheader"), "{shell} lacks the formats");
        }
    }
}
