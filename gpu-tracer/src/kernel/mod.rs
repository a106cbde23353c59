//! What this kernel is: BTF offsets, features, devices.
