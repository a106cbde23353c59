//! What is the emulator's fault and nobody else's.
//!
//! While a processor stores an instruction, another may translate what was there before, and QEMU then keeps that translation:
//! what it is about to throw away it has thrown away already. Linux changes its own code so whenever tracepoints are switched on or
//! off, with a breakpoint in between (`text_poke_bp`). Such a breakpoint is hit when it is not there any more. The kernel does not
//! know it, and the machine ends; or (5.10) it takes it for one that has just been removed, tries the instruction again, and
//! never gets any further. That happens once in a few hundred times that all system calls are hooked while another processor makes some.
//!
//! Where the breakpoint was put to switch on ftrace for a kprobe, the kernel takes it for the kprobe's own, which has none: it goes
//! on, interrupts off as for a single step, at the copy of an instruction that was never made, address 0
//! (`arch_prepare_kprobe_ftrace`, `setup_singlestep`).

/// What a boot ended with that was the emulator's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The kernel ran into a breakpoint that is not in its memory.
    Breakpoint,
    /// Nothing was heard any more, and a processor does not leave the kernel. That may be somebody else's fault, who will then do it
    /// again.
    Standstill,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Breakpoint => "the emulator ran a breakpoint that was not there any more",
            Self::Standstill => "a processor of the guest does not leave the kernel",
        })
    }
}

impl Fault {
    /// What this console tells of.
    pub(super) fn of(console: &str) -> Option<Self> {
        if is_breakpoint(console) || is_breakpoint_taken_for_a_probes(console) {
            Some(Self::Breakpoint)
        } else if console.contains("soft lockup - CPU#") && !console.contains("Kernel panic") {
            Some(Self::Standstill)
        } else {
            None
        }
    }
}

/// Does this console tell of a breakpoint that the kernel ran into and that is not in its memory?
fn is_breakpoint(console: &str) -> bool {
    let mut lines = console.lines().skip_while(|line| !line.contains("int3: 0000"));
    // Of several processors' reports the first.
    let code = lines.find_map(|line| line.split_once("Code: "));
    let before = code.and_then(|(_, bytes)| bytes.split_once(" <")).map(|(before, _)| before);
    // The breakpoint (`cc`) is the byte before the one that would have been next.
    before.is_some_and(|bytes| !bytes.ends_with("cc"))
}

/// Does this console tell of a kernel that went to address 0 with interrupts off?
///
/// Whoever calls a function that is not there does it with interrupts on nearly always; who does it with interrupts off will do it again.
fn is_breakpoint_taken_for_a_probes(console: &str) -> bool {
    const INTERRUPTS_ON: u64 = 1 << 9;
    let mut lines = console.lines().skip_while(|line| !line.ends_with("RIP: 0010:0x0"));
    let flags = lines.find_map(|line| line.split_once("EFLAGS: "));
    flags
        .and_then(|(_, flags)| u64::from_str_radix(flags.trim(), 16).ok())
        .is_some_and(|flags| flags & INTERRUPTS_ON == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cause: &str, code: &str) -> String {
        format!(
            "[   88.8] {cause}: 0000 [#1] PREEMPT SMP NOPTI\n[   88.8] RIP: 0010:syscall_exit_to_user_mode_prepare+0xd7/0x170\n\
             [   88.8] Code: {code}\n[   88.8] RSP: 0018:ff6f60ca89097e80 EFLAGS: 00000202\n"
        )
    }

    #[test]
    fn a_breakpoint_that_is_not_there_is_the_emulators() {
        assert_eq!(
            Some(Fault::Breakpoint),
            Fault::of(&report("Oops: int3", "49 8b 04 24 e9 4a ff ff ff eb <02> eb 80 48"))
        );
        assert_eq!(Some(Fault::Breakpoint), Fault::of(&report("int3", "e9 4a ff ff ff 0f <1f> 44 00 00")));
    }

    #[test]
    fn a_breakpoint_taken_for_a_probes_is_the_emulators() {
        let report = |rip, flags| {
            format!(
                "[  125.3] #PF: supervisor instruction fetch in kernel mode\n[  125.3] Oops: Oops: 0010 [#1] SMP NOPTI\n\
                 [  125.3] RIP: 0010:{rip}\n[  125.3] Code: Unable to access opcode bytes at 0xffffffffffffffd6.\n\
                 [  125.3] RSP: 0018:ff5de5b645677888 EFLAGS: {flags}\n[  125.3] RIP: 0033:0x7ffff7ebf9b3\n\
                 [  125.3] RSP: 002b:00007fffffffd948 EFLAGS: 00000246 ORIG_RAX: 0000000000000009\n"
            )
        };
        assert_eq!(Some(Fault::Breakpoint), Fault::of(&report("0x0", "00000046")));
        // A call of nothing, and what is not at 0.
        assert_eq!(None, Fault::of(&report("0x0", "00000246")));
        assert_eq!(None, Fault::of(&report("nvidia_mmap+0x4/0xc0 [nvidia]", "00000046")));
    }

    #[test]
    fn a_processor_that_goes_nowhere_is_told() {
        let text = "[  204.5] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [init:2497]\n";
        assert_eq!(Fault::of(text), Some(Fault::Standstill));
        assert_eq!(
            Fault::of(&format!("{text}[  205.1] Kernel panic - not syncing: Fatal exception\n")),
            None
        );
    }

    #[test]
    fn one_that_is_there_and_whatever_else_ends_a_kernel_is_not() {
        for text in [
            report("Oops: int3", "49 8b 04 24 e9 4a ff ff ff cc <02> eb 80 48"),
            report("Oops", "49 8b 04 24 e9 4a ff ff ff eb <02> eb 80 48"),
            "[    3.1] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n".to_owned(),
            String::new(),
        ] {
            assert_eq!(Fault::of(&text), None, "{text}");
        }
    }
}
