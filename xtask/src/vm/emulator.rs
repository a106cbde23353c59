//! What is the emulator's fault and nobody else's.
//!
//! While a processor stores an instruction, another may translate what was there before, and QEMU then keeps that translation:
//! what it is about to throw away it has thrown away already. Linux changes its own code so whenever tracepoints are switched on or
//! off, with a breakpoint in between (`text_poke_bp`). Such a breakpoint is hit when it is not there any more. The kernel does not
//! know it, and the machine ends; or (5.10) it takes it for one that has just been removed, tries the instruction again, and
//! never gets any further. That happens once in a few hundred times that all system calls are hooked while another processor makes some.

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
        if is_breakpoint(console) {
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
