//! What the kernel said happened.
