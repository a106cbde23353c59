//! gpu-tracer
fn main() {}
