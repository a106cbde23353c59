//! What is the emulator's fault and nobody else's.
//!
//! While a processor stores an instruction, another may translate what was there before, and QEMU then keeps that translation:
//! what it is about to throw away it has thrown away already. Linux changes its own code so whenever tracepoints are switched on or
//! off, with a breakpoint in between (`smp_text_poke_batch_finish`). Such a breakpoint is hit when it is not there any more, the
//! kernel does not know it, and the machine ends. That happens once in a few hundred times that all system calls are hooked.

/// Does this console tell of a breakpoint that the kernel ran into and that is not in its memory?
pub(super) fn is_to_blame(console: &str) -> bool {
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
        assert!(is_to_blame(&report("Oops: int3", "49 8b 04 24 e9 4a ff ff ff eb <02> eb 80 48")));
        assert!(is_to_blame(&report("int3", "e9 4a ff ff ff 0f <1f> 44 00 00")));
    }

    #[test]
    fn one_that_is_there_and_whatever_else_ends_a_kernel_is_not() {
        for text in [
            report("Oops: int3", "49 8b 04 24 e9 4a ff ff ff cc <02> eb 80 48"),
            report("Oops", "49 8b 04 24 e9 4a ff ff ff eb <02> eb 80 48"),
            "[    3.1] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n".to_owned(),
            String::new(),
        ] {
            assert!(!is_to_blame(&text), "{text}");
        }
    }
}
