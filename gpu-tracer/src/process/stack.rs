//! `/proc/PID/wchan` and `/proc/PID/stack`: where in the kernel a task sits.

use super::ProcDir;
use crate::model::TaskState;

/// Most bytes of a `stack` that are read: the kernel keeps at most 64 frames.
pub const STACK_LIMIT: usize = 16 * 1024;
/// Most bytes of a `wchan` that are read: a symbol name.
pub const WCHAN_LIMIT: usize = 512;
/// Most frames that are kept.
const MOST_FRAMES: usize = 64;

/// May the stack of a task in this state be read? There is nothing to see in that of a running one, and where it is inside
/// a function with a return probe the kernel complains of the attempt (`rethook_find_ret_addr`).
#[must_use]
pub fn may_be_read(state: TaskState) -> bool {
    state != TaskState::Running
}

/// The function a task waits in; `None` when it runs, or when the kernel writes `0` because it does not say.
#[must_use]
pub fn parse_wchan(text: &[u8]) -> Option<String> {
    let name = symbol(text.trim_ascii())?;
    (name != "0").then_some(name)
}

/// The function a task waits in and its stack, innermost first: of the task whose directory is `task` and which was in this
/// state a moment ago. Nothing for what may not be read.
#[must_use]
pub fn where_it_waits(task: &ProcDir, state: TaskState) -> (Option<String>, Vec<String>) {
    let stack = read_stack(task, state);
    (read_wchan(task).or_else(|| innermost(&stack)), stack)
}

/// The function alone: the stack is read only where the kernel does not name it.
#[must_use]
pub fn waits_in(task: &ProcDir, state: TaskState) -> Option<String> {
    read_wchan(task).or_else(|| innermost(&read_stack(task, state)))
}

/// The function that a task with this stack waits in.
///
/// Before 5.16 the kernel looks for it along frame pointers (`get_wchan`), which distributions build it without, and mostly
/// finds nothing. The stack leaves the scheduler's functions out, as `wchan` does.
#[must_use]
pub fn innermost(stack: &[String]) -> Option<String> {
    let frame = stack.first()?;
    Some(frame.split_once(' ').map_or(&**frame, |(name, _)| name).to_owned())
}

fn read_wchan(task: &ProcDir) -> Option<String> {
    task.read("wchan", WCHAN_LIMIT).ok().and_then(|text| parse_wchan(&text))
}

fn read_stack(task: &ProcDir, state: TaskState) -> Vec<String> {
    let text = if may_be_read(state) { task.read("stack", STACK_LIMIT).ok() } else { None };
    text.map(|text| parse_stack(&text)).unwrap_or_default()
}

/// Function names, innermost first, each followed by ` [module]` if it is of one.
///
/// Reads lines such as `[<0>] uvm_release_entry+0x1f/0x40 [nvidia_uvm]`; a frame without a symbol is left out.
#[must_use]
pub fn parse_stack(text: &[u8]) -> Vec<String> {
    text.split(|byte| *byte == b'\n').filter_map(frame).take(MOST_FRAMES).collect()
}

fn frame(line: &[u8]) -> Option<String> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut word = words.next()?;
    if word.starts_with(b"[<") {
        word = words.next()?;
    }
    // Kernels before 4.15 end the list with the address 0xffffffffffffffff.
    let name = symbol(word).filter(|name| !name.starts_with("0x"))?;
    match words.next() {
        Some(module) if module.starts_with(b"[") => {
            Some(format!("{name} [{}]", symbol(module.trim_ascii_start().strip_prefix(b"[")?)?))
        }
        _ => Some(name),
    }
}

/// The leading part that can be a symbol's or module's name, without `+0x1f/0x40`.
fn symbol(word: &[u8]) -> Option<String> {
    let may_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$' | b'-');
    let length = word.iter().position(|byte| !may_name(byte)).unwrap_or(word.len());
    (length > 0).then(|| String::from_utf8_lossy(&word[..length]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_lose_offsets_and_keep_modules() {
        let text = b"[<0>] percpu_rwsem_wait+0x116/0x140\n[<0>] uvm_release_entry+0x1f/0x40 [nvidia_uvm]\n\
            [<0>] foo.constprop.0+0x1/0x2\n[<ffffffffffffffff>] 0xffffffffffffffff\n";
        assert_eq!(
            parse_stack(text),
            ["percpu_rwsem_wait", "uvm_release_entry [nvidia_uvm]", "foo.constprop.0"]
        );
    }

    #[test]
    fn a_wchan_of_zero_or_nothing_is_no_wait() {
        assert_eq!(parse_wchan(b"0"), None);
        assert_eq!(parse_wchan(b""), None);
        assert_eq!(parse_wchan(b"do_wait\n"), Some("do_wait".to_owned()));
    }

    #[test]
    fn the_function_at_the_top_of_a_stack_is_named_without_its_module() {
        assert_eq!(
            innermost(&["nv_wait [nvidia]".to_owned(), "do_exit".to_owned()]).as_deref(),
            Some("nv_wait")
        );
        assert_eq!(innermost(&["do_exit".to_owned()]).as_deref(), Some("do_exit"));
        assert_eq!(innermost(&[]), None);
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_files_only_plain_names_come_out(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let names = parse_stack(&bytes).into_iter().chain(parse_wchan(&bytes));
            for name in names {
                prop_assert!(name.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{name:?}");
            }
        }
    }
}
