//! What is worth knowing about a process, from a `/proc` rooted anywhere.
