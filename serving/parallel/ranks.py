"""Rank 0's hold on the other ranks: their start, what they are told, how they end, and how the replica ends with them.

The other ranks are children of this process. They die with it (the kernel sees to that), and when one of them dies or
is late, the replica is told once, the others are killed, and nothing can be told to them any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

import serving
from lora_kernels import AdapterTensors, LoraKernelError
from serving.errors import ConfigError
from serving.models.config import ModelConfig
from serving.parallel import memory, wire
from serving.parallel.cargo import Cargo
from serving.parallel.collectives import Collectives
from serving.parallel.shards import Shard
from serving.parallel.wire import Command, RankSettings, Ready

log = logging.getLogger(__name__)

# A rank needs these of this process's environment: nothing of it is secret.
_ENVIRONMENT = ("CUDA_", "LD_LIBRARY_PATH", "NCCL_", "NVIDIA_", "TRITON_", "HOME", "TMPDIR", "XDG_")
_START_SECONDS = 900.0  # a large checkpoint from a slow disk
_END_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_MESSAGE_BYTES = 1 << 16


class RanksLost(RuntimeError):
    """A rank of this replica has ended or is late: the replica is about to end."""


@dataclass(slots=True)
class _Child:
    """One rank. plans, loads: sockets; done: number of the last command that it has carried out"""

    rank: int
    process: subprocess.Popen[bytes]
    plans: socket.socket
    loads: socket.socket
    done: int = 0


class Ranks:
    """Ranks 1 to N - 1 of a replica. Start it, build rank 0's part meanwhile, then `wait_loaded` and `connect`.

    Commands belong to the engine's thread; `load` may be called from any thread.

    locked: whether the other ranks could lock their adapter pages in RAM
    must_lock: refuse adapters whose parts could reach swap on their way to the ranks
    settings: of rank 0; the others' differ by their rank and device
    """

    def __init__(self, settings: RankSettings, model: ModelConfig) -> None:
        self.lost: str | None = None
        self.locked, self.must_lock = True, False
        self._settings, self._model = settings, model
        self._children: list[_Child] = []
        self._sent, self._loads = 0, 0
        self._lock, self._load_lock = threading.Lock(), threading.Lock()
        self._closing = False
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._started = threading.Event()
        self._wake, self._wakes = socket.socketpair()
        self._places = memory.Shared(memory.create(wire.PLACES * settings.command_bytes))
        # A child gets its death signal when the thread that started it ends: this one lives as long as they do.
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)

    def start(self) -> None:
        """Start the processes. Raises ConfigError or OSError."""
        self._watcher.start()
        self._started.wait()
        if self.lost is not None:
            raise ConfigError(f"--tensor-parallel: {self.lost}")

    @property
    def count(self) -> int:
        """Return how many ranks the replica has, rank 0 included."""
        return self._settings.ranks

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the other ranks."""
        return [child.process.pid for child in self._children]

    @property
    def meeting(self) -> str:
        """Return the path by which the ranks found one another."""
        return self._settings.meeting

    def wait_loaded(self) -> None:
        """Wait until every rank has loaded its weights; `locked` is known then.

        Raises ConfigError, and then every rank has ended.
        """
        for child in self._children:
            child.plans.settimeout(_START_SECONDS)
            try:
                ready = msgspec.json.decode(child.plans.recv(_MESSAGE_BYTES), type=Ready)
            except (OSError, msgspec.DecodeError):
                ready = Ready(error="it ended while it started; its log lines say why")
            if ready.error:
                self.close()
                raise ConfigError(f"--tensor-parallel: rank {child.rank}: {ready.error}")
            self.locked = self.locked and ready.locked
            child.plans.settimeout(self._settings.seconds)

    def connect(self, device: torch.device) -> Collectives:
        """Meet the other ranks, which have loaded their weights. Raises ConfigError, and then every rank has ended."""
        s = self._settings
        try:
            self.tell(wire.Connect())
            collectives = Collectives(Path(s.meeting), s.rank, s.ranks, device, s.seconds)
            self.settle()
        except RuntimeError as error:
            self.close()
            raise ConfigError(f"--tensor-parallel: the ranks do not find one another: {error}") from error
        return collectives

    # -- commands, in the engine's thread ---------------------------------------------------------------------------

    def tell(self, command: Command) -> None:
        """Have every rank carry out a command, after those before it. Raises RanksLost."""
        raw, size = wire.encode(command), self._settings.command_bytes
        if len(raw) > size:
            raise ValueError(f"a command of {len(raw)} bytes is longer than its place of {size}")
        self._await(self._sent - wire.PLACES + 1)
        begin = self._sent % wire.PLACES * size
        self._places.map[begin : begin + len(raw)] = raw
        frame = wire.COMMAND.pack(self._sent, len(raw))
        self._sent += 1
        for child in self._children:
            try:
                child.plans.sendall(frame)
            except OSError as error:
                self._lose(f"rank {child.rank} cannot be told anything ({error})")
        self._check()

    def settle(self) -> None:
        """Wait until every rank has carried out all commands. Raises RanksLost."""
        self._await(self._sent)

    def zero(self, blocks: list[int]) -> None:
        """Zero KV blocks on every other rank before this returns; a rank that is gone has no memory left."""
        with contextlib.suppress(RanksLost):
            self.tell(wire.Zero(blocks))
            self.settle()

    def take_number(self) -> int:
        """Return a number for a load."""
        self._loads += 1
        return self._loads

    def abandon(self, error: BaseException) -> None:
        """End all ranks: rank 0 has left a step at a place that the others do not know."""
        ended = []
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its sockets close a moment before it has ended
                ended.append(f"rank {child.rank} has ended with status {child.process.wait(_LOOK_SECONDS)}")
        self._lose(", ".join(ended) or f"a step failed on rank 0, or another rank was late ({type(error).__name__})")

    def _await(self, count: int) -> None:
        """Wait until every rank has carried out the first `count` commands."""
        for child in self._children:
            while child.done < count:
                self._check()
                try:
                    frame = child.plans.recv(wire.DONE.size)
                    if not frame:
                        raise OSError("it has ended")
                    child.done = wire.DONE.unpack(frame)[0] + 1
                except OSError as error:
                    self._lose(f"rank {child.rank} does not answer ({error})")
        self._check()

    def _check(self) -> None:
        if self.lost is not None:
            raise RanksLost(self.lost)

    # -- loads, in any thread ---------------------------------------------------------------------------------------

    def load(self, number: int, tensors: AdapterTensors, write: Callable[[memory.Shared], None]) -> None:
        """Give each rank its part of an adapter, this one by `write`; returns when all have written it to their pages.

        Parts are in anonymous memory that is locked where adapters are on loan, and wiped before this returns.
        Raises what `write` raises, LoraKernelError for what another rank refused, or RanksLost.
        """
        with self._load_lock:
            parts: list[memory.Shared] = []
            try:
                for rank in range(self._settings.ranks):
                    parts.append(self._part(rank, tensors))
                for child in self._children:
                    self._hand_over(child, number, parts[child.rank])
                problem: BaseException | None = None
                try:
                    write(parts[0])
                except Exception as error:
                    problem = error  # the others' answers are still to be read
                for child in self._children:
                    refusal = self._answer(child, number)
                    problem = problem or refusal
                if problem is not None:
                    raise problem
            finally:
                for part in parts:
                    part.close()

    def _hand_over(self, child: _Child, number: int, part: memory.Shared) -> None:
        try:
            socket.send_fds(child.loads, [wire.LOAD.pack(number)], [part.fd])
        except OSError as error:
            self._lose(f"rank {child.rank} takes no adapter ({error})")
            raise RanksLost(self.lost) from error

    def _part(self, rank: int, tensors: AdapterTensors) -> memory.Shared:
        """Copy a rank's part of an adapter to new memory. Raises LoraKernelError if it has to be locked and is not."""
        cargo = Cargo(list(Shard(rank, self._settings.ranks).adapter(self._model, tensors)))
        part = memory.Shared(memory.create(cargo.nbytes), lock=self._settings.private)
        try:
            if self.must_lock and not part.locked:
                raise LoraKernelError("a rank's part of the adapter cannot be locked in RAM (`ulimit -l`)")
            cargo.write(part.bytes)
        except BaseException:
            part.close()
            raise
        return part

    def _answer(self, child: _Child, number: int) -> LoraKernelError | None:
        """Return why a rank refused its part, None if it has written it. Raises RanksLost."""
        child.loads.settimeout(self._settings.seconds)
        try:
            answer = child.loads.recv(wire.LOAD.size + wire.ERROR_BYTES)
            if len(answer) < wire.LOAD.size or wire.LOAD.unpack_from(answer)[0] != number:
                raise OSError("it has ended, or answers something else")
        except OSError as error:
            self._lose(f"rank {child.rank} does not finish a load ({error})")
            raise RanksLost(self.lost) from error
        text = answer[wire.LOAD.size :].decode(errors="replace")
        return LoraKernelError(text) if text else None

    # -- start and end ----------------------------------------------------------------------------------------------

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Have `call` called with the reason, once, when a rank is lost; at once if one is lost already."""
        with self._lock:
            self._on_lost, lost = call, self.lost
        if lost is not None:
            call(lost)

    def close(self) -> None:
        """End all ranks and wait for them, in the engine's thread when no load runs any more. Idempotent."""
        with self._lock:
            first, self._closing = not self._closing, True
        if not first:
            return
        if self.lost is None:
            with contextlib.suppress(RanksLost, ValueError):
                self.tell(wire.Stop())
        with contextlib.suppress(OSError):
            self._wakes.send(b"\0")
        if self._watcher.is_alive():
            self._watcher.join()
        for child in self._children:
            child.plans.close()
            child.loads.close()
        self._wake.close()
        self._wakes.close()
        self._places.close()

    def _lose(self, reason: str) -> None:
        """Note the loss, kill every rank, and tell the replica, once."""
        with self._lock:
            if self.lost is not None or self._closing:
                self.lost = self.lost or reason
                return
            self.lost, tell = reason, self._on_lost
        log.error("tensor parallelism: %s; this replica ends", reason)
        for child in self._children:
            child.process.kill()
        tell(reason)

    def _watch(self) -> None:
        """Start the ranks, and wait until one ends or `close` is called. All have ended when this returns."""
        try:
            for rank in range(1, self._settings.ranks):
                self._children.append(self._spawn(rank))
        except (OSError, ValueError) as error:
            self.lost = f"a rank cannot be started ({error})"
        self._started.set()
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._wake, selectors.EVENT_READ)
            ends = {os.pidfd_open(child.process.pid): child for child in self._children}
            for fd in ends:
                waiting.register(fd, selectors.EVENT_READ)
            if self.lost is None:
                ready = [key.fd for key, _ in waiting.select()]
                for fd in ready:
                    if fd in ends:
                        ends[fd].process.wait()
                        self._lose(f"rank {ends[fd].rank} has ended with status {ends[fd].process.returncode}")
            for fd in ends:
                os.close(fd)
        self._reap()

    def _reap(self) -> None:
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(_END_SECONDS)
            child.process.kill()
            child.process.wait()
        shutil.rmtree(Path(self._settings.meeting).parent, ignore_errors=True)

    def _spawn(self, rank: int) -> _Child:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        (plans, its_plans), (loads, its_loads) = pairs
        fds = [its_plans.fileno(), its_loads.fileno(), self._places.fd]
        root = str(Path(serving.__file__).resolve().parents[1])
        environment = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
        process = subprocess.Popen(
            [sys.executable, "-m", "serving.parallel.rank", str(os.getpid()), *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath, "PYTHONPATH": root, **environment},
            cwd=root,
            pass_fds=fds,
        )
        its_plans.close()
        its_loads.close()
        device = f"cuda:{rank}" if self._settings.device.startswith("cuda") else self._settings.device
        plans.sendall(msgspec.json.encode(msgspec.structs.replace(self._settings, rank=rank, device=device)))
        return _Child(rank, process, plans, loads)


def meeting_place() -> str:
    """Return a path in a new folder of this user alone, for `RankSettings.meeting`."""
    return str(Path(tempfile.mkdtemp(prefix="intarsia-ranks-")) / "meeting")
