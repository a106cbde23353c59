//! What a process calls itself: comm and the command line in its own memory.

use std::io;

use super::check;

/// Sets the name of the calling task; the kernel keeps 15 bytes.
pub fn rename(comm: &[u8]) -> io::Result<()> {
    let mut name = [0u8; 16];
    let length = comm.len().min(15);
    name[..length].copy_from_slice(&comm[..length]);
    // SAFETY: the name is NUL-terminated.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }).map(drop)
}

/// Overwrites the command line that `/proc/PID/cmdline` shows.
///
/// In place where it fits, as a program does that rewrites its `argv`; otherwise by moving the area
/// (`PR_SET_MM_ARG_START`, needs CAP_SYS_RESOURCE). Needs `/proc`.
pub fn retitle(title: &[u8]) -> io::Result<()> {
    let (start, end) = argv_area()?;
    let room = (end - start) as usize;
    if title.len() < room {
        // SAFETY: [start, end) is this process's own argument area: writable, and read by nobody here after start-up
        // (the standard library copies arguments when asked, and this program has already taken its own).
        unsafe {
            let area = start as *mut u8;
            std::ptr::copy_nonoverlapping(title.as_ptr(), area, title.len());
            std::ptr::write_bytes(area.add(title.len()), 0, room - title.len());
        }
        return Ok(());
    }
    let mut text = title.to_vec();
    text.push(0);
    let text: &'static [u8] = Vec::leak(text);
    let new_start = text.as_ptr() as u64;
    let new_end = new_start + text.len() as u64;
    // The kernel insists on start <= end after each of the two steps.
    if new_start <= end {
        set_mm(libc::PR_SET_MM_ARG_START, new_start)?;
        set_mm(libc::PR_SET_MM_ARG_END, new_end)
    } else {
        set_mm(libc::PR_SET_MM_ARG_END, new_end)?;
        set_mm(libc::PR_SET_MM_ARG_START, new_start)
    }
}

fn set_mm(which: libc::c_int, address: u64) -> io::Result<()> {
    // SAFETY: changes only what `/proc/PID/cmdline` reads; the memory there is leaked and stays.
    check(unsafe { libc::prctl(libc::PR_SET_MM, which, address, 0, 0) }).map(drop)
}

/// `arg_start` and `arg_end` of this process: fields 48 and 49 of `stat`.
fn argv_area() -> io::Result<(u64, u64)> {
    let stat = std::fs::read("/proc/self/stat")?;
    let after_name = stat.iter().rposition(|byte| *byte == b')').map_or(0, |at| at + 2);
    let fields: Vec<&[u8]> = stat[after_name..].split(|byte| *byte == b' ').collect();
    let field = |number: usize| -> Option<u64> {
        std::str::from_utf8(fields.get(number - 3)?).ok()?.trim().parse().ok()
    };
    match (field(48), field(49)) {
        (Some(start), Some(end)) if start < end => Ok((start, end)),
        _ => Err(io::Error::other("/proc/self/stat does not say where the arguments are")),
    }
}
