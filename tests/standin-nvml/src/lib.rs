//! A stand-in `libnvidia-ml.so.1`: the C functions that `nvml-wrapper` calls, answering from a file.
//!
//! The JSON file named by the environment variable `STANDIN_NVML` is read at every `nvmlInit`. Every field is optional:
//!
//! ```json
//! {
//!   "driver_version": "580.159.04",
//!   "gpus": [
//!     {"uuid": "GPU-0000", "bus_id": "00000000:00:06.0", "minor": 0, "name": "NVIDIA H200", "mig": false,
//!      "used_mib": 103019, "total_mib": 143771,
//!      "processes": [{"pid": 430, "mib": 103010, "kind": "compute", "gpu_instance": 1}, {"pid": 7, "mib": null}]}
//!   ],
//!   "driver": "/proc/driver/standin-nvidia/memory",
//!   "information": "/proc/driver/nvidia/gpus",
//!   "faults": [{"call": "processes", "gpu": 0, "do": "hang"}]
//! }
//! ```
//!
//! * A GPU's index is its place in `gpus`. PIDs are just numbers: they may be dead, thread ids or nonsense. `"mib": null`
//!   and `"used_mib": null` are the "[N/A]" of NVML; `kind` is `compute`, `graphics` or `mps`.
//! * Without `gpus`, GPUs are read from the directory `information` (that of the driver, real or stand-in), in the
//!   order of their bus ids.
//! * `driver` names a table that is read again at **every** memory and process query, and then replaces what the JSON
//!   says of the GPUs in it. See [`table`] for its lines.
//! * With a `driver_version` from 535.43 up to 535.98 the third version of the process calls writes entries of 32
//!   bytes, as those drivers do.
//!
//! A fault names a `call`: a C function (`nvmlDeviceGetMemoryInfo_v2`) or one of the groups `init`, `identity`, `memory`,
//! `processes`, `mig`; optionally a `gpu`; and what to `do` when it is called:
//!
//! | `do` | effect |
//! |---|---|
//! | `"hang"` | never returns |
//! | `"deadlock"` | never returns, nor does any call that is not answered yet: the driver's global lock is kept |
//! | `"error"`, with `"status": N` | returns that `nvmlReturn_t` |
//! | `"absent"` | `NVML_ERROR_FUNCTION_NOT_FOUND`, as a library does for functions that its driver lacks |
//! | `"old"` | `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`, as for a structure version it does not know |
//! | `"crash"` | kills the process with SIGSEGV |
//! | `"chatter"`, with `"text": "..."` | prints the text to standard output, then answers |
//! | `"sleep"`, with `"ms": N` | answers that much later |

mod exports;
pub mod table;
pub mod world;
