"""Processes that have torch and the serving tier imported when they start: forked from one that has.

    warm().start("serving", "--model", …)    as `python -m serving --model …`, two or three seconds of a core sooner
    warm().run("tests.together.maker", …)    the same, to its end
    warm().run("tests.warm", "imported")     the names of all modules that serving a platform imports

A child has arguments, environment, working folder, output and limits of its own; it takes signals and ends as a process
that was started. What it does not have of its own is torch's start: tests of that start Python itself. The tests of the
platform import no torch, so it is here that they have models and replicas made.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from devstack.supervisor import die_with_parent

REPOSITORY = Path(__file__).resolve().parents[1]
_LIMITS = (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE)
_MOST = 1 << 17  # bytes of a message: an environment is the largest part
_IMPORTED = ("torch", "serving.replica", "serving.http.app", "serving.http.server", "serving.platform.launch")


@functools.cache
def warm() -> Warm:
    """Return this process's own; it ends with this process."""
    return Warm()


class Warm:
    """The process that forks, and the socket on which it is asked to."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # a library's pool of threads would not outlive a fork
            pass_fds=[theirs.fileno()],
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        theirs.close()

    def start(
        self,
        module: str,
        *arguments: object,
        output: IO[Any],
        errors: IO[Any] | None = None,
        folder: Path = REPOSITORY,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Run `module` as `python -m` does. errors: where the error stream goes, if not to `output`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {
            "module": module,
            "arguments": [str(one) for one in arguments],
            "folder": str(folder),
            "environment": dict(os.environ if environment is None else environment),
            "limits": [resource.getrlimit(one) for one in _LIMITS],
        }
        streams = [output.fileno(), (errors or output).fileno()]
        with theirs:
            socket.send_fds(self._socket, [json.dumps(order).encode()], [theirs.fileno(), *streams])
        return Child(ours)

    def run(self, module: str, *arguments: object) -> str:
        """Run `module` to its end; returns what it printed. Raises RuntimeError with its errors when it fails."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            code = self.start(module, *arguments, output=output, errors=errors).wait()
            for stream in (output, errors):
                stream.seek(0)
            if code:
                raise RuntimeError(f"{module} {arguments}: {code}\n{errors.read().decode(errors='replace')[-4000:]}")
            return output.read().decode()


class Child:
    """What tests use of `subprocess.Popen`, of a process that is another one's child."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.returncode: int | None = None
        self.pid = int(self._receive())

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.returncode = int(self._receive())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(self._receive())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended: its number may be another's by now."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _receive(self) -> str:
        message = self._connection.recv(_MOST).decode()
        if not message:
            raise RuntimeError("the process that forks has ended")
        return message


def serve(orders: socket.socket) -> Mapping[str, Any]:
    """Fork for each order and tell how children end. Returns in a child, with its order."""
    dies_with_this = die_with_parent(signal.SIGKILL)
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not orders:
                _tell_the_end(selector, key)
                continue
            message, handles, _, _ = socket.recv_fds(orders, _MOST, 3)
            if not message:
                sys.exit(0)
            answers, *streams = handles
            pid = os.fork()
            if pid == 0:
                dies_with_this()
                for one in selector.get_map().values():
                    if one.data:
                        one.data[1].close()
                        os.close(one.fd)
                selector.close()
                orders.close()
                os.close(answers)
                for target, stream in zip((1, 2), streams, strict=True):
                    os.dup2(stream, target)
                    os.close(stream)
                order: Mapping[str, Any] = json.loads(message)
                return order
            for stream in streams:
                os.close(stream)
            connection = socket.socket(fileno=answers)
            connection.send(str(pid).encode())
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _tell_the_end(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    pid, connection = key.data
    selector.unregister(key.fileobj)
    os.close(key.fd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with connection:
        try:
            connection.send(str(code).encode())
        except BrokenPipeError:
            return  # nobody wants to know


def become(order: Mapping[str, Any]) -> None:
    """Run the module of an order in this process, as its own program."""
    for limit, pair in zip(_LIMITS, order["limits"], strict=True):
        resource.setrlimit(limit, tuple(pair))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # the folder of the new environment
    sys.argv = [order["module"], *order["arguments"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["imported"]:
        print(*sys.modules)
        sys.exit(0)
    for name in _IMPORTED:
        __import__(name)
    gc.freeze()  # what is here stays shared: a child's collector leaves it alone
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
