"""Everything that rank 0 tells the other ranks, typed: commands in shared memory, one after the other.

Both ends are one build of one replica; nothing here leaves the machine. A command is msgpack of a known type and never
longer than its place.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec
import numpy as np

from serving.kernels.upload import Int32s
from serving.runner.work import StepWork

# Commands that may wait to be read.
PLACES = 4
# Over the sockets: number and length of a command; the number of the last one that was carried out.
COMMAND, DONE = struct.Struct("<QQ"), struct.Struct("<Q")
# Over the sockets of loads: number of a reservation, beside a part's descriptor; the same, with an error behind it.
LOAD = struct.Struct("<Q")
ERROR_BYTES = 512


class RankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a rank: everything by which it builds its part. Types of numbers are torch's names.

    meeting: see `serving.parallel.collectives`; seconds: how long ranks wait for one another
    private: adapters are on loan: pages are kept from dumps, forks and, where allowed, swap
    command_bytes: of each of `PLACES` places
    """

    rank: int
    ranks: int
    folder: str
    device: str
    weights: str
    cache: str
    adapters: str
    num_blocks: int
    block_size: int
    max_len: int
    max_rows: int
    max_sequences: int
    threads: int
    pages: int
    slots: int
    private: bool
    meeting: str
    seconds: float
    command_bytes: int


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's first answer, when its weights are loaded.

    locked: whether its adapter pages cannot reach swap; error: why it cannot start
    """

    locked: bool = False
    error: str = ""


class Connect(msgspec.Struct, frozen=True, tag="connect", array_like=True):
    """Meet the other ranks: all have loaded their weights."""


class Step(msgspec.Struct, frozen=True, tag="step", array_like=True):
    """The arrays of `serving.runner.work.StepWork`, native int32."""

    token_ids: bytes
    chunk_rows: bytes
    chunk_starts: bytes
    chunk_tables: bytes
    blocks: bytes
    slots: bytes
    copies: bytes
    stale: bytes

    @classmethod
    def of(cls, work: StepWork) -> Step:
        """Return the message of a step's work."""
        return cls(*(getattr(work, name).tobytes() for name in cls.__struct_fields__))

    def work(self) -> StepWork:
        """Return the step's work."""
        arrays = {name: _int32s(getattr(self, name)) for name in self.__struct_fields__}
        return StepWork(**arrays | {"copies": arrays["copies"].reshape(-1, 2)})


class GpuStep(msgspec.Struct, frozen=True, tag="gpu_step", array_like=True):
    """The fields of `serving.runner.gpu.GpuWork`, and `rows`: the used part of rank 0's step buffer, native int32."""

    shape: tuple[int, bool, bool]
    units: int
    entries: int
    slots: list[int]
    counts: list[int]
    copies: list[tuple[int, int]]
    rows: bytes

    def buffer(self) -> Int32s:
        """Return the used part of the step buffer."""
        return _int32s(self.rows)


class Zero(msgspec.Struct, frozen=True, tag="zero", array_like=True):
    """Erase KV blocks."""

    blocks: list[int]


class Reserve(msgspec.Struct, frozen=True, tag="reserve", array_like=True):
    """Take pages for a load that has this number from now on."""

    number: int
    pages: int


class Publish(msgspec.Struct, frozen=True, tag="publish", array_like=True):
    """Make a written load a slot."""

    slot: int
    number: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel", array_like=True):
    """Zero and free what a load took."""

    number: int


class Evict(msgspec.Struct, frozen=True, tag="evict", array_like=True):
    """Zero and free the pages of a slot."""

    slot: int


class Blend(msgspec.Struct, frozen=True, tag="blend", array_like=True):
    """Make a slot of other slots, with weights."""

    slot: int
    parts: list[tuple[int, float]]


class Stop(msgspec.Struct, frozen=True, tag="stop", array_like=True):
    """End: the replica stops."""


Command = Connect | Step | GpuStep | Zero | Reserve | Publish | Cancel | Evict | Blend | Stop

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Command).decode


@dataclass(frozen=True, slots=True)
class Most:
    """The largest step of a replica: rows, sequences, blocks of one sequence, KV blocks in all."""

    rows: int
    sequences: int
    blocks_each: int
    blocks: int

    @property
    def command_bytes(self) -> int:
        """Return what its longest command takes: msgpack has at most 9 bytes for a number in a list."""
        tables = self.sequences * self.blocks_each
        # For a GPU: ids, sources, positions, slots and tables of rows, wanted rows, tiles of 4, pairs of table entries.
        rows = 16 * self.rows + 16 * self.sequences
        return 4 * (rows + 2 * tables) + 9 * (3 * self.blocks + 4 * self.sequences) + (1 << 16)


def _int32s(data: bytes) -> Int32s:
    return np.frombuffer(data, np.int32)
