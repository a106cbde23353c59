"""Holders on a real NVIDIA GPU that other tools lose, staged one after the other, with every tool's answer side by side.

    python3 tests/gpu/cases.py --tracer ./gpu-tracer [--mib 100000] [--out results.json] [CASE...]

Needs root, an NVIDIA driver with its user libraries, `nvidia-smi` and `fuser`. Each case is made of real processes with
real device memory, and is undone before the next begins. Exits 1 if gpu-tracer's answer is wrong in any case.
"""

import argparse
import array
import contextlib
import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from cuda import Cuda, leave_leader, rename, watch_with_nvml  # noqa: E402

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
DEADLINE_S = 60


# ---------------------------------------------------------------- stages: what runs in processes of their own


def stage_plain(mib):
    Cuda().alloc(mib)
    return {}


def stage_inherited(mib):
    """A context with memory, then a child that never touches CUDA."""
    Cuda().alloc(mib)
    child = os.fork()
    if child == 0:
        os.setsid()
        rename("VLLM::Worker_TP0")
        while True:
            time.sleep(3600)
    return {"child": child}


def stage_frozen_thread(mib, mount):
    """One thread blocks in a write to a frozen file system."""
    Cuda().alloc(mib)
    directory = os.open(mount, os.O_RDONLY)
    file = os.open(os.path.join(mount, "log"), os.O_CREAT | os.O_WRONLY)
    tid = []

    def write():
        tid.append(threading.get_native_id())
        while True:
            os.write(file, b"x" * 4096)

    fcntl.ioctl(directory, FIFREEZE, 0)
    threading.Thread(target=write, daemon=True).start()
    wait_for(lambda: tid and state_of(os.getpid(), tid[0]) == "D", "a thread in D state")
    return {"tid": tid[0]}


def stage_zombie_leader(mib):
    """The main thread ends, another one sleeps on."""
    Cuda().alloc(mib)
    sleeper = threading.Thread(target=lambda: time.sleep(3600))
    sleeper.start()
    return {"tid": sleeper.native_id, "leave": True}


def stage_exported(mib):
    """Memory exported as a descriptor, sent to a socket that nobody reads; then killed."""
    descriptor = Cuda().alloc_exported(mib)
    with socket.socket(fileno=int(os.environ["CASE_SOCKET"])) as end:
        end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    return {}


def stage_initialised(_mib):
    Cuda(context=False)
    return {}


def stage_monitor(_mib):
    watch_with_nvml()
    return {}


def stage_on_gpu_1(mib):
    Cuda(device=1).alloc(mib)
    return {}


def stage_ipc_exporter(mib):
    """Memory that another process of this host may map."""
    cuda = Cuda()
    return {"handle": cuda.export_ipc(cuda.alloc(mib)).hex()}


def stage_ipc_importer(handle):
    Cuda().import_ipc(bytes.fromhex(handle))
    return {}


def run_stage(name, arguments):
    truth = globals()["stage_" + name](*arguments)
    print(json.dumps({"pid": os.getpid(), **truth}), flush=True)
    if truth.get("leave"):
        leave_leader()
    while True:
        time.sleep(3600)


# ---------------------------------------------------------------- the other tools


def output(*command, timeout=30):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    return done.stdout.strip()


def gpu_memory():
    return int(output("nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits") or 0)


def nvidia_smi_processes():
    rows = output("nvidia-smi", "-i", "0", "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader")
    return [row.strip() for row in rows.splitlines() if row.strip()]


def fuser():
    nodes = [str(node) for node in pathlib.Path("/dev").glob("nvidia*") if node.is_char_device()]
    return sorted({int(pid) for pid in output("fuser", *nodes).split() if pid.isdigit()})


def lsof():
    nodes = [str(node) for node in pathlib.Path("/dev").glob("nvidia*") if node.is_char_device()]
    text = output("lsof", "-t", *nodes)
    return sorted({int(pid) for pid in text.split() if pid.isdigit()}) if not text.startswith("(") else text


def ask(tracer, *arguments):
    started = time.monotonic()
    done = subprocess.run([tracer, "holders", *arguments], capture_output=True, text=True, timeout=30)
    return done, (time.monotonic() - started) * 1000


# ---------------------------------------------------------------- staging and judging


def wait_for(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise RuntimeError(f"timed out waiting for {what}")


def state_of(pid, tid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/task/{tid}/stat").read_text()
    except OSError:
        return None
    return stat[stat.rindex(")") + 2]


def start(name, *arguments, **options):
    process = subprocess.Popen(
        [sys.executable, __file__, "--stage", name, *map(str, arguments)], stdout=subprocess.PIPE, text=True, **options
    )
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"stage {name} ended early with status {process.wait()}")
    return process, json.loads(line)


def kill(*pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def frozen_file_system():
    with tempfile.TemporaryDirectory() as directory:
        image, mount = os.path.join(directory, "image"), os.path.join(directory, "mount")
        os.mkdir(mount)
        subprocess.run(["truncate", "-s", "64M", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, mount], check=True)
        handle = os.open(mount, os.O_RDONLY)

        def thaw():
            with contextlib.suppress(OSError):
                fcntl.ioctl(handle, FITHAW, 0)

        try:
            yield mount, thaw
        finally:
            thaw()
            os.close(handle)
            for _ in range(100):
                if subprocess.run(["umount", mount], capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)


class Case:
    """One row of the table."""

    def __init__(self, name, tracer):
        self.name, self.tracer, self.row = name, tracer, {"case": name}

    def judge(self, pid, tid=None, why=(), device=None, key="fds", role=None):
        done, ms = ask(self.tracer, "--format", "json")
        report = json.loads(done.stdout)
        named = [
            holder
            for holder in report["holders"]
            if holder["pid"] == pid and (tid is None or holder["tid"] == tid) and set(why) <= set(holder["why"])
        ]
        if role:
            named = [holder for holder in named if holder["role"] == role]
        if device:
            named = [h for h in named if any(d["device"] == device and d[key] > 0 for d in h["devices"])]
        self.row.update(
            expected={"pid": pid, "tid": tid, "why": list(why), "role": role},
            memory_mib=gpu_memory(),
            nvidia_smi=nvidia_smi_processes(),
            fuser=fuser(),
            lsof=lsof(),
            gpu_tracer=[
                {k: h[k] for k in ("pid", "tid", "state", "leader_state", "wchan", "why", "role", "comm", "devices", "memory")}
                for h in report["holders"]
            ],
            complete=report["coverage"]["complete"],
            missing=report["coverage"]["missing"],
            unexplained=sum(file["unexplained"] for file in report["files"]),
            exit_status=done.returncode,
            ms=round(ms),
            table=ask(self.tracer)[0].stdout,
            why=self.diagnosis(),
            right=self.row.get("right", True) and bool(named) and done.returncode == 1,
        )

    def diagnosis(self):
        done = subprocess.run([self.tracer, "why", "all"], capture_output=True, text=True, timeout=30)
        return {"exit_status": done.returncode, "text": done.stdout + done.stderr}

    def free_after(self, release):
        """Undoes the case; how long until the GPU's memory is back and nobody is listed."""
        started = time.monotonic()
        release()
        wait_for(lambda: gpu_memory() < 1024, "the memory to come back")
        self.row["freed_ms"] = round((time.monotonic() - started) * 1000)
        wait_for(lambda: ask(self.tracer, "--format", "json")[0].returncode == 0, "an answer that nobody holds it")


def case_plain(case, mib):
    process, truth = start("plain", mib)
    case.judge(truth["pid"], why=["live"], device="nvidia0")
    case.free_after(lambda: (process.kill(), process.wait()))


def case_inherited(case, mib):
    process, truth = start("inherited", mib)
    process.kill()
    process.wait()
    time.sleep(1)
    case.row["dead_parent"] = truth["pid"]
    case.judge(truth["child"], device="nvidia0")
    case.free_after(lambda: kill(truth["child"]))


def case_frozen_thread(case, mib):
    with frozen_file_system() as (mount, thaw):
        process, truth = start("frozen_thread", mib, mount)
        process.kill()
        wait_for(lambda: state_of(truth["pid"], truth["pid"]) == "Z", "the leader to become a zombie")
        case.judge(truth["pid"], truth["tid"], ["thread-of-defunct", "stuck-in-kernel"], "nvidia0")
        case.free_after(lambda: (thaw(), process.wait()))


def case_zombie_leader(case, mib):
    process, truth = start("zombie_leader", mib)
    wait_for(lambda: state_of(truth["pid"], truth["pid"]) == "Z", "the leader to become a zombie")
    case.judge(truth["pid"], None, ["thread-of-defunct"], "nvidia0")
    case.free_after(lambda: (process.kill(), process.wait()))


def case_exported(case, mib):
    near, far = socket.socketpair()
    with near:
        os.set_inheritable(far.fileno(), True)
        environment = dict(os.environ, CASE_SOCKET=str(far.fileno()))
        process, truth = start("exported", mib, env=environment, pass_fds=[far.fileno()])
        process.kill()
        process.wait()
        far.close()
        time.sleep(1)
        case.row["dead_sender"] = truth["pid"]
        case.judge(os.getpid(), device="nvidiactl", key="in_flight")
        case.free_after(near.close)


def case_initialised(case, _mib):
    process, truth = start("initialised", 0)
    case.judge(truth["pid"], why=["live"], device="nvidia0")
    case.free_after(lambda: (process.kill(), process.wait()))


def case_monitor(case, _mib):
    """Looks and computes nothing: to be named, and to be called innocent."""
    process, truth = start("monitor", 0)
    case.judge(truth["pid"], device="nvidia0", role="monitor")
    case.free_after(lambda: (process.kill(), process.wait()))


def case_ipc_importer(case, mib):
    """The memory's creator is killed; who has mapped it keeps it."""
    exporter, exported = start("ipc_exporter", mib)
    importer, truth = start("ipc_importer", exported["handle"])
    exporter.kill()
    exporter.wait()
    time.sleep(1)
    case.row["dead_exporter"] = exported["pid"]
    case.judge(truth["pid"], why=["live"], device="nvidia0", role="compute")
    case.free_after(lambda: (importer.kill(), importer.wait()))


def case_mps(case, mib):
    """A client computes through the server; both are named, each for what it is."""
    with tempfile.TemporaryDirectory() as directory:
        environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=directory, CUDA_MPS_LOG_DIRECTORY=directory)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True, stdout=subprocess.DEVNULL)
        try:
            process, truth = start("plain", mib, env=environment)
            [server] = pids_of("nvidia-cuda-mps-server")
            case.row["mps_server"] = server
            case.judge(server, device="nvidia0", role="mps-server")
            case.judge(truth["pid"], why=["live"], device="nvidia0", role="compute")
            process.kill()
            process.wait()
        finally:
            quit_mps = ["nvidia-cuda-mps-control"]
            case.free_after(lambda: subprocess.run(quit_mps, env=environment, input="quit -t 0\n", text=True))


def pids_of(name):
    """Processes that execute a program of this name."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(process / "exe")) == name:
                found.append(int(process.name))
    return found


def case_other_gpu(case, mib):
    """It computes on GPU 1, and its context is on GPU 0 as well."""
    process, truth = start("on_gpu_1", mib)
    case.judge(truth["pid"], why=["live"], device="nvidia1")
    case.free_after(lambda: (process.kill(), process.wait()))


CASES = {name[5:]: function for name, function in list(globals().items()) if name.startswith("case_")}


def shown(row):
    """A row of the README's table."""
    ours = "; ".join(
        f"PID {h['pid']}" + (f" thread {h['tid']}" if h["tid"] != h["pid"] else "") + f" ({', '.join(h['why'])})"
        for h in row["gpu_tracer"]
    )
    return (
        f"| {row['case']} | {row['memory_mib']:,} MiB | {'; '.join(row['nvidia_smi']) or 'nothing'} "
        f"| {' '.join(map(str, row['fuser'])) or 'nothing'} | {row['lsof'] if isinstance(row['lsof'], str) else ' '.join(map(str, row['lsof'])) or 'nothing'} "
        f"| {ours or 'nothing'} | {'right' if row['right'] else 'WRONG'}, {row['ms']} ms, freed after {row.get('freed_ms')} ms |"
    )


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--stage":
        run_stage(sys.argv[2], [int(a) if a.isdecimal() and len(a) < 20 else a for a in sys.argv[3:]])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tracer", required=True, type=os.path.abspath, help="the gpu-tracer binary")
    parser.add_argument("--mib", type=int, default=100_000, help="device memory of each case, MiB")
    parser.add_argument("--out", help="write every tool's answer to this file, as JSON")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="which cases; all by default")
    options = parser.parse_args()
    rows = []
    two = len(output("nvidia-smi", "-L").splitlines()) > 1
    for name in options.cases or [name for name in CASES if two or name != "other_gpu"]:
        case = Case(name, options.tracer)
        try:
            CASES[name](case, options.mib)
        except Exception as error:  # noqa: BLE001 - the other cases are worth their results
            case.row["error"] = repr(error)
            case.row.setdefault("right", False)
        rows.append(case.row)
        print(shown(case.row) if "memory_mib" in case.row else case.row, flush=True)
        if "error" in case.row:
            print("  error:", case.row["error"], flush=True)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(rows, indent=1))
    return 0 if all(row["right"] and "error" not in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
