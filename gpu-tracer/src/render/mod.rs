//! Output formats; escapes every string that came from a process.
