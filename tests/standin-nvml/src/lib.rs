//! A stand-in `libnvidia-ml.so.1`.
