"""The whole story of one big process on a real GPU, as `gpu-tracer watch` tells it: opened, forked, killed by whom, released.

    python3 tests/gpu/story.py --tracer ./gpu-tracer [--gib 100]

Needs root, an NVIDIA driver and PyTorch. Starts a daemon of its own (private socket, state and pins), so it leaves nothing
behind and disturbs no daemon that is running.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

STAGE = """
import os, sys, time, torch
block = torch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device="cuda")
block.fill_(1)
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    os.setsid()
    with open("/proc/self/comm", "w") as comm:
        comm.write("VLLM::Worker_TP0")
    while True:
        time.sleep(3600)
print(child, flush=True)
time.sleep(3600)
"""


def used_mib():
    done = subprocess.run(
        ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
    )
    return int(done.stdout)


def wait_for(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out waiting for {what}")
        time.sleep(0.01)


@contextlib.contextmanager
def daemon(tracer):
    with tempfile.TemporaryDirectory() as directory:
        pins = os.path.join(directory, "bpf")
        os.mkdir(pins)
        subprocess.run(["mount", "-t", "bpf", "bpf", pins], check=True)
        socket = os.path.join(directory, "gpu-tracer.sock")
        log = open(os.path.join(directory, "log"), "w+")
        process = subprocess.Popen(
            [tracer, "run", "--socket", socket, "--state-dir", os.path.join(directory, "state"), "--pin-dir", os.path.join(pins, "gpu-tracer")],
            stdout=log, stderr=subprocess.STDOUT,
        )
        try:
            wait_for(lambda: os.path.exists(socket), "the daemon")
            yield socket, os.path.join(directory, "state")
        finally:
            process.terminate()
            process.wait()
            log.seek(0)
            print("-- the daemon said:", log.read(), sep="\n")
            subprocess.run([tracer, "run", "--unpin", "--pin-dir", os.path.join(pins, "gpu-tracer")], capture_output=True)
            subprocess.run(["umount", pins])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tracer", required=True, type=os.path.abspath)
    parser.add_argument("--gib", type=int, default=100)
    options = parser.parse_args()
    with daemon(options.tracer) as (socket, state), tempfile.TemporaryFile("w+") as told:
        watch = subprocess.Popen([options.tracer, "watch", "--socket", socket], stdout=told)
        time.sleep(0.5)
        process = subprocess.Popen([sys.executable, "-c", STAGE, str(options.gib)], stdout=subprocess.PIPE, text=True)
        child = int(process.stdout.readline())

        def show(what):
            done = subprocess.run([options.tracer, "holders", "--socket", socket], capture_output=True, text=True)
            print(f"-- {what}: {used_mib()} MiB used; holders exits {done.returncode}", done.stdout, sep="\n")

        show("parent and forked child")
        subprocess.run(["bash", "-c", f"kill -9 {process.pid}"], check=True)
        process.wait()
        time.sleep(1)
        show("parent killed")
        times = []
        for _ in range(20):
            begun = time.monotonic()
            subprocess.run([options.tracer, "why", "--socket", socket], capture_output=True)
            times.append(1000 * (time.monotonic() - begun))
        print(f"why through the daemon, NVML asked: median {sorted(times)[10]:.0f} ms, most {max(times):.0f} ms")
        why = subprocess.run([options.tracer, "why", "--socket", socket], capture_output=True, text=True)
        print("-- why, parent killed:", why.stdout, sep="\n")
        started = time.monotonic()
        subprocess.run(["bash", "-c", f"kill -9 {child}"], check=True)
        wait_for(lambda: used_mib() < 1024, "the memory to come back")
        print(f"memory back {1000 * (time.monotonic() - started):.0f} ms after the second kill")
        time.sleep(1)
        show("child killed")
        watch.send_signal(signal.SIGINT)
        watch.wait()
        told.seek(0)
        lines = [line for line in told.read().splitlines() if f"[{process.pid}" in line or f"[{child}" in line]
        print(f"-- watch told {len(lines)} lines of these two; two of each kind:")
        seen = {}
        for line in lines:
            kind = line.split()[1]
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] <= 2:
                print(line)
        print("counted:", seen)
        journal = ["history", "--state-dir", state]
        for what in (["--story", str(process.pid)], ["0", "--since", "5m"]):
            done = subprocess.run([options.tracer, *journal, *what], capture_output=True, text=True)
            print("-- history", *what, f"(exits {done.returncode})\n" + done.stdout[:5000], done.stderr)
        status = subprocess.run(
            ["curl", "-s", "--unix-socket", socket, "http://localhost/v1/status"], capture_output=True, text=True
        ).stdout
        if status:
            status = json.loads(status)
            print("-- status:", {key: status[key] for key in ("plan", "rss_kib", "cpu_seconds", "losses", "drift", "counts", "last_look")})


if __name__ == "__main__":
    main()
