//! Developer commands of gpu-tracer.
fn main() {}
