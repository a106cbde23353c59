"""The little of libcuda that the cases need, through ctypes: no framework, so that every handle has a known reason."""

import ctypes
import os

SIZE_MIB = 1 << 20


class CudaError(RuntimeError):
    """A driver call returned something other than CUDA_SUCCESS."""


def _library():
    for name in ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError("libcuda.so.1 was not found: these cases need the NVIDIA driver's user libraries")


class Cuda:
    """One process's view of the driver API; one context on one device."""

    def __init__(self, device=0, context=True):
        self.lib = _library()
        self.call("cuInit", 0)
        if context:
            dev = ctypes.c_int()
            self.call("cuDeviceGet", ctypes.byref(dev), device)
            self.device = dev.value
            self.context = ctypes.c_void_p()
            # The primary context: cuCtxCreate changed its signature between driver releases.
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), dev)
            self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *arguments):
        function = getattr(self.lib, name)
        result = function(*arguments)
        if result != 0:
            raise CudaError(f"{name} returned {result}")

    def alloc(self, mib):
        """`mib` MiB of device memory; the pointer."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(mib * SIZE_MIB))
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(mib * SIZE_MIB))
        self.call("cuCtxSynchronize")
        return pointer.value

    def alloc_exported(self, mib):
        """`mib` MiB as a POSIX descriptor that can be handed to another process; the descriptor."""

        class Location(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]

        class Flags(ctypes.Structure):
            _fields_ = [
                ("compression", ctypes.c_ubyte),
                ("gpu_direct_rdma", ctypes.c_ubyte),
                ("usage", ctypes.c_ushort),
                ("reserved", ctypes.c_ubyte * 4),
            ]

        class Properties(ctypes.Structure):
            _fields_ = [
                ("type", ctypes.c_int),
                ("handle_types", ctypes.c_int),
                ("location", Location),
                ("win32", ctypes.c_void_p),
                ("flags", Flags),
            ]

        pinned, posix_descriptor, on_device = 1, 1, 1
        properties = Properties(pinned, posix_descriptor, Location(on_device, self.device), None, Flags())
        handle = ctypes.c_uint64()
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(mib * SIZE_MIB), ctypes.byref(properties), ctypes.c_uint64(0))
        descriptor = ctypes.c_int()
        self.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, posix_descriptor, ctypes.c_uint64(0))
        return descriptor.value

    def export_ipc(self, pointer):
        """A handle of this memory for other processes of this host; 64 bytes."""
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
        return bytes(handle)

    def import_ipc(self, handle):
        """Maps memory that another process has exported; the pointer."""
        pointer, lazily_with_peer_access = ctypes.c_uint64(), 1
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), IpcHandle.from_buffer_copy(handle), lazily_with_peer_access)
        return pointer.value


class IpcHandle(ctypes.Structure):
    """`CUipcMemHandle`."""

    _fields_ = [("reserved", ctypes.c_char * 64)]


def watch_with_nvml():
    """Opens every GPU as a monitor does; keeps them open."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2() != 0:
        raise CudaError("nvmlInit_v2 failed")
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        device = ctypes.c_void_p()
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        name = ctypes.create_string_buffer(96)
        nvml.nvmlDeviceGetName(device, name, 96)


def rename(name):
    """Another name for this process, as `ps` and `pkill` see it."""
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)


def leave_leader():
    """Ends the calling thread only (the leader becomes a zombie while others live)."""
    libc = ctypes.CDLL(None)
    libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)
