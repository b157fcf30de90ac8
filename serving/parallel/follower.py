"""A rank that follows rank 0: it computes its part of each step and keeps its part of each adapter."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from lora_kernels import AdapterPool, LoraKernelError, Reservation
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.models.loader import ModelWeights
from serving.parallel import memory, wire
from serving.parallel.cargo import read_cargo
from serving.parallel.collectives import Collectives, ShardedLlama
from serving.parallel.part import load_part
from serving.parallel.shards import Shard
from serving.parallel.wire import RankSettings, Ready
from serving.runner.torch_runner import TorchRunner

if TYPE_CHECKING:
    from serving.parallel.gpu import ShardedGpuLlama
    from serving.runner.gpu import GpuRunner

log = logging.getLogger(__name__)

_MESSAGE_BYTES = 1 << 16


class Follower:
    """One rank's model, KV and adapters, and what rank 0 may tell it."""

    def __init__(self, settings: RankSettings) -> None:
        s = self._settings = settings
        self.device = torch.device(s.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        torch.set_num_threads(s.threads)
        model = ModelConfig.from_dir(Path(s.folder))
        local = Shard(s.rank, s.ranks).config(model)
        adapters = getattr(torch, s.adapters)
        self.pool = AdapterPool(
            pool_spec(local), s.pages, s.slots, adapters, self.device, private=s.private, extra_bytes=0
        )
        self.kv = PagedKV(local, s.num_blocks, s.block_size, getattr(torch, s.cache), self.device)
        self._model: ShardedLlama | ShardedGpuLlama
        self._torch: TorchRunner | None = None
        self._gpu: GpuRunner | None = None
        weights = load_part(Path(s.folder), model, Shard(s.rank, s.ranks), getattr(torch, s.weights), self.device)
        self._build(local, weights)
        self._loads: dict[int, Reservation] = {}
        self._arrived = threading.Condition()

    def slot(self, digest: str | None) -> int:
        """Return -1: steps name slots, and a rank knows no digests."""
        return -1

    def carry_out(self, command: wire.Command) -> bool:
        """Do what rank 0 says. Returns whether to go on."""
        match command:
            case wire.Connect():
                self._connect()
            case wire.Step():
                assert self._torch is not None
                self._torch.compute(command.work())
            case wire.GpuStep():
                from serving.parallel.gpu import follow_step  # imported late, as below

                assert self._gpu is not None
                follow_step(self._gpu, command)
            case wire.Zero(blocks):
                self.kv.zero(blocks)
                self._finish()
            case wire.Reserve(number, pages):
                with self._arrived:
                    self._loads[number] = self.pool.reserve(pages)
                    self._arrived.notify_all()
            case wire.Publish(slot, number):
                self.pool.publish(slot, self._loads.pop(number))
            case wire.Cancel(number):
                self.pool.cancel(self._loads.pop(number))
                self._finish()
            case wire.Evict(slot):
                self.pool.evict(slot)
                self._finish()
            case wire.Blend(slot, parts):
                self.pool.blend(slot, parts)
            case wire.Stop():
                return False
        return True

    def write(self, number: int, part: memory.Shared) -> None:
        """Write a part of an adapter to the pages that were, or are about to be, reserved. In a thread of its own."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self._loads, self._settings.seconds):
                raise LoraKernelError("the pages of this load were never reserved")
            reservation = self._loads[number]
        reservation.write(read_cargo(part.bytes))
        reservation.wait()

    def _build(self, local: ModelConfig, weights: ModelWeights) -> None:
        s = self._settings
        if self.device.type == "cpu":
            self._model = ShardedLlama(local, weights, s.max_len)
            self._torch = TorchRunner(self._model, self.kv, self)
            return
        # Imported late: Triton comes with CUDA builds of torch alone.
        from serving.parallel.gpu import ShardedGpuLlama
        from serving.runner.gpu import GpuRunner

        self._model = ShardedGpuLlama(local, weights, s.max_len, s.max_sequences)
        self._gpu = GpuRunner(
            self._model,
            self.kv,
            self,
            max_rows=s.max_rows,
            max_samples=s.max_sequences,
            max_blocks=-(-s.max_len // s.block_size),
            graphs=None,
        )

    def _finish(self) -> None:
        """Wait until the device has erased what it was told to: rank 0 takes the answer for that."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _connect(self) -> None:
        s = self._settings
        self._model.collectives = Collectives(Path(s.meeting), s.rank, s.ranks, self.device, s.seconds)


def follow(plans_fd: int, loads_fd: int, places_fd: int) -> int:
    """Serve rank 0 over these descriptors until it stops or ends. Returns the exit code."""
    plans, loads = socket.socket(fileno=plans_fd), socket.socket(fileno=loads_fd)
    settings = msgspec.json.decode(plans.recv(_MESSAGE_BYTES), type=RankSettings)
    places = memory.Shared(places_fd)
    try:
        follower = Follower(settings)
    except Exception as error:
        log.exception("rank %d cannot start", settings.rank)
        plans.sendall(msgspec.json.encode(Ready(error=f"{type(error).__name__}: {error}"[:1000])))
        return 1
    plans.sendall(msgspec.json.encode(Ready(locked=follower.pool.locked)))
    threading.Thread(target=_take_loads, args=(follower, loads), name="loads", daemon=True).start()
    with torch.inference_mode():
        while frame := plans.recv(wire.COMMAND.size):
            number, length = wire.COMMAND.unpack(frame)
            begin = number % wire.PLACES * settings.command_bytes
            if not follower.carry_out(wire.decode(places.map[begin : begin + length])):
                break
            plans.sendall(wire.DONE.pack(number))
    return 0


def _take_loads(follower: Follower, loads: socket.socket) -> None:
    """Write the parts of adapters that rank 0 sends, one after the other, and wipe what they came in."""
    while True:
        data, fds, _, _ = socket.recv_fds(loads, wire.LOAD.size, 1)
        if not data or not fds:
            return
        (number,), error = wire.LOAD.unpack(data), b""
        part = memory.Shared(fds[0], lock=follower.pool.locked)
        try:
            follower.write(number, part)
        except Exception as problem:
            error = str(problem).encode()[: wire.ERROR_BYTES] or b"the part was refused"
        finally:
            part.close()
        loads.sendall(data + error)
