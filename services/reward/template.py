"""The template of the worker processes: it has imported what they need, and forks one whenever the pool asks.

Run by `services.reward.forge` as `python -m services.reward.template CONTROL_FD PARENT_PID LIMITS_JSON`. A worker that
is killed is replaced in milliseconds, although the libraries behind some verifiers take seconds to import. It has one
thread and judges nothing itself. Users' modules are imported in the workers, after the fork: they may start threads.

Messages are JSON, one a packet: `{"fork": []}` with two descriptors (the worker's socket, its progress memory) is
answered with `{"pid": …}`, `{"prepare": name}` with `{"prepared": name, "error": ""}`; `{"ended": pid, "status": …}`
comes whenever a worker has ended.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys

from services.reward.verifiers.registry import CHECK, heavy_names
from services.reward.worker import WorkerLimits, work

PACKET = 4096


def main(arguments: list[str]) -> None:
    """Serve the pool until it goes away."""
    control = socket.socket(fileno=int(arguments[0]))
    die_with(int(arguments[1]))
    limits = WorkerLimits(**json.loads(arguments[2]))
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, PACKET)
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(control, PACKET, 2)
            if not message:
                return
            _answer(json.loads(message), descriptors, control, limits)
        _report_ended(control)


def _answer(message: dict[str, str], descriptors: list[int], control: socket.socket, limits: WorkerLimits) -> None:
    if "prepare" in message:
        _tell(
            control,
            {"prepared": message["prepare"], "error": _import(heavy_names()[message["prepare"].removeprefix(CHECK)])},
        )
        return
    gc.freeze()  # the collector would otherwise touch, and so copy, every page that the workers share
    pid = os.fork()
    if pid == 0:
        _become_worker(control, descriptors, limits)
    for descriptor in descriptors:
        os.close(descriptor)
    _tell(control, {"pid": pid})


def _import(module: str) -> str:
    """Import a verifier's module and call its `warm_up`, if it has one; returns what is wrong with it, or nothing."""
    if module in sys.modules:
        return ""
    try:
        warm_up = getattr(importlib.import_module(module), "warm_up", None)
        if warm_up is not None:
            warm_up()
    except Exception as error:  # a library may fail in any way; its verifier then fails, and the others go on
        return f"{module} cannot be imported: {type(error).__name__}: {error}"
    return ""


def _become_worker(control: socket.socket, descriptors: list[int], limits: WorkerLimits) -> None:
    """Never returns: whatever happens, this process must not go on as a second template."""
    status = 1
    try:
        parent = os.getppid()
        os.setsid()  # so that a kill takes along whatever a check has started
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        die_with(parent)
        work(socket.socket(fileno=descriptors[0]), descriptors[1], limits)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    finally:
        os._exit(status)


def _report_ended(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(control, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(control: socket.socket, message: object) -> None:
    try:
        control.send(json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, also when a check never comes back."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
