"""Builds one replica from its settings: base model, KV cache, adapter pool, engine."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import resource
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from lora_kernels import AdapterPool
from sealed_weights import BaseSpec, base_fingerprint
from serving.adapters.manager import AdapterManager
from serving.adapters.source import AdapterSource
from serving.config import ServingConfig
from serving.core import Request
from serving.cores import available_cores
from serving.engine import Engine
from serving.engine.sharing import Boundary, SharedMemory, boundary_between
from serving.errors import ConfigError
from serving.kv.pool import BlockPool
from serving.kv_levels import build_tiers
from serving.memory import available_bytes
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.parallel.ranks import Ranks
from serving.parallel.runner import ShardedPool
from serving.parallel.shards import check_ranks
from serving.parallel.start import AdapterMemory, lead, serves_on, start_ranks
from serving.runner import (
    Precision,
    RunnerSettings,
    bytes_per_block,
    choose_precision,
    choose_runner,
    has_kernels,
    keeps_eight_bits,
)
from serving.runner.step_graphs import StepGraphs
from serving.scheduler.cost_model import CostModel
from serving.scheduler.planner import Planner
from serving.sizing import MIB, Card, CardPlan, Steps, Units, host_copies, plan_card, step_bytes, weight_bytes
from serving.speculation import Drafter
from serving.tokenization.output import CompletionText
from serving.tokenization.tokenizer import Tokenizer
from serving.trace import Trace

log = logging.getLogger(__name__)

_CUDA = torch.device("cuda")
# Share of a step's time in which loads have the cores to themselves; see `Gate`.
_LOAD_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Base:
    """The base model on disk, as adapters and the platform know it."""

    folder: Path
    config: ModelConfig
    spec: BaseSpec
    tokenizer: Tokenizer

    @classmethod
    def from_dir(cls, folder: Path, fingerprint: Future[bytes] | None = None) -> Base:
        """Read config and tokenizer; hash the weights (about a second per gigabyte) unless `fingerprint` does."""
        # First of all: a model that is not served is refused before its weights are hashed.
        model = ModelConfig.from_dir(folder)
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        digest = base_fingerprint(folder) if fingerprint is None else fingerprint.result()
        spec = BaseSpec.from_hf_config(raw, digest, folder.name)
        return cls(folder, model, spec, Tokenizer.from_dir(folder))

    @property
    def fingerprint(self) -> str:
        return self.spec.fingerprint.hex()


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is CUDA where present. Raises ConfigError if "cuda" is missing."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: no CUDA device here")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


@dataclass(frozen=True, slots=True)
class _Memory:
    """The most that KV cache and adapters may address.

    boundary: how they share one budget; None: each has its own
    card: what a GPU's memory is for
    """

    block_bytes: int
    blocks: int
    pages: int
    max_len: int
    boundary: Boundary | None
    card: CardPlan | None = None


def _plan_memory(config: ServingConfig, model: ModelConfig, precision: Precision, device: torch.device) -> _Memory:
    """Derive the sizes of KV cache and adapter pool. Raises ConfigError when the settings leave no room."""
    several = config.tensor_parallel > 1
    block = bytes_per_block(model, config.block_size, precision, device, plain=several)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return plan_gpu(config, model, precision, block, Card(total=total, free=free))
    blocks = (config.kv_cache_mb << 20) // block
    if blocks < 2:
        raise ConfigError(f"--kv-cache-mb {config.kv_cache_mb}: one block takes {block >> 20} MiB, two are needed")
    max_len = min(config.max_model_len or model.max_position, model.max_position, (blocks - 1) * config.block_size)
    spec = pool_spec(model)
    page = spec.page_bytes(precision.adapters)
    pages = (config.adapter_memory_mb << 20) // page
    if pages < 1:
        raise ConfigError(f"--adapter-memory-mb {config.adapter_memory_mb}: one page takes {page >> 20} MiB")
    if not config.elastic_memory or config.tensor_parallel > 1 or not has_kernels(device):
        return _Memory(block, blocks, pages, max_len, None)
    # At every position of the boundary there is room for a sequence of any length and an adapter of any rank.
    boundary = boundary_between(
        adapters=(pages * page, spec.max_pages * page), kv=(blocks * block, (max_len // config.block_size + 3) * block)
    )
    return _Memory(
        block,
        blocks=(boundary.total - boundary.adapter_floor) // block,
        pages=(boundary.total - boundary.kv_floor) // page,
        max_len=max_len,
        boundary=boundary,
    )


def plan_gpu(config: ServingConfig, model: ModelConfig, precision: Precision, block: int, card: Card) -> _Memory:
    """Derive the sizes on a GPU whose KV blocks take `block` bytes. Raises ConfigError when the model does not fit."""
    spec = pool_spec(model)
    longest = min(config.max_model_len or model.max_position, model.max_position)
    rows, samples = config.max_batched_tokens, config.max_num_seqs
    steps = Steps(
        rows=rows,
        samples=samples,
        drafts=config.max_draft_rows,
        max_len=longest,
        graphs=0 if config.tensor_parallel > 1 else len(StepGraphs(rows, samples).shapes()),
    )
    units = Units(
        block=block,
        block_tokens=config.block_size,
        page=spec.page_bytes(precision.adapters),
        page_rank=spec.page_size,
        slots=config.adapter_slots,
    )
    size = precision.weights.itemsize
    plan = plan_card(
        card,
        units,
        weights=weight_bytes(model, size, eight_bits=config.tensor_parallel == 1 and keeps_eight_bits(model, _CUDA)),
        reserve={
            **step_bytes(model, steps, size, spec.max_rank),
            "extras of adapters": config.adapter_extras_mb * MIB,
        },
        fraction=config.gpu_memory_fraction,
        kv_bytes=config.kv_cache_mb * MIB,
        adapter_bytes=config.adapter_memory_mb * MIB,
    )
    max_len = min(longest, (plan.blocks - 1) * config.block_size)
    return _Memory(block, plan.blocks, plan.pages, max_len, None, plan)


def _host_bytes(config: ServingConfig, device: torch.device) -> int:
    """Return the bytes for decrypted copies in host memory. Raises ConfigError when there are not so many."""
    available = available_bytes()
    if config.host_adapter_memory_mb is None:
        # A host copy saves lease and decryption; on a CPU the pool is host memory already.
        return host_copies(available) if device.type == "cuda" else 0
    wanted = config.host_adapter_memory_mb * MIB
    if available and wanted > available:
        raise ConfigError(
            f"--host-adapter-memory-mb {config.host_adapter_memory_mb}: {available // MIB} MiB are available on this "
            "machine or in this container"
        )
    return wanted


def served_dtype(config: ServingConfig) -> str:
    """Return the type in which the base's linears are served, such as "bfloat16"."""
    device = choose_device(config.device)
    config = config.on(device.type)
    precision = choose_precision(config.dtype, device, config.kv_dtype, config.adapter_dtype)
    return str(precision.weights).removeprefix("torch.")


def block_bytes(config: ServingConfig, model: ModelConfig) -> int:
    """Return the bytes of one block of KV, over all layers, as a replica of these settings keeps it."""
    device = choose_device(config.device)
    precision = choose_precision(config.dtype, device, config.kv_dtype, config.adapter_dtype)
    return bytes_per_block(model, config.block_size, precision, device)


def build_engine(
    config: ServingConfig,
    base: Base,
    source: AdapterSource,
    *,
    must_lock: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    """Load the base model and allocate KV cache and adapter pool. The engine is not started.

    must_lock: refuse adapter memory that could reach swap
    clock: of the engine and of adapter memory, in seconds

    Raises ConfigError when the memory settings leave no room or a lock is refused, ModelConfigError for a model that is
    not served.
    """
    torch.set_num_threads(config.thread_count)
    device = choose_device(config.device)
    config = config.on(device.type)
    precision = choose_precision(config.dtype, device, config.kv_dtype, config.adapter_dtype)
    model, count = base.config, config.tensor_parallel
    if count > 1:
        check_ranks(model, count)
    memory = _plan_memory(config, serves_on(model, count), precision, device)
    log.info(
        "loading %s as %s on %s, adapters as %s, %d threads",
        base.folder,
        precision.weights,
        device,
        precision.adapters,
        config.thread_count,
    )
    for line in () if memory.card is None else memory.card.table():
        log.info("GPU memory: %s", line)
    settings = RunnerSettings(
        folder=base.folder,
        model=model,
        device=device,
        precision=precision,
        num_blocks=memory.blocks,
        block_size=config.block_size,
        max_len=memory.max_len,
        max_rows=config.max_batched_tokens,
        max_sequences=config.max_num_seqs,
        threads=config.thread_count,
        max_draft_rows=config.max_draft_rows,
    )
    ranks = None
    if count > 1:
        pages = AdapterMemory(pages=memory.pages, slots=config.adapter_slots, private=source.leased)
        ranks = start_ranks(settings, count, pages, config.tensor_parallel_timeout_s)
    try:
        return _assemble(config, base, source, memory, settings, ranks, must_lock=must_lock, clock=clock)
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise


def _assemble(
    config: ServingConfig,
    base: Base,
    source: AdapterSource,
    memory: _Memory,
    settings: RunnerSettings,
    ranks: Ranks | None,
    *,
    must_lock: bool,
    clock: Callable[[], float],
) -> Engine:
    """Load the base model and put the engine together. ranks: the others, which load theirs meanwhile"""
    device, precision = settings.device, settings.precision
    pool = BlockPool(memory.blocks, config.block_size, caching=config.prefix_caching)
    # Before the weights are loaded: a system that refuses the lock is known at once.
    make_pool = AdapterPool if ranks is None else partial(ShardedPool, ranks)
    adapter_pool: AdapterPool = make_pool(
        pool_spec(serves_on(settings.model, config.tensor_parallel)),
        memory.pages,
        config.adapter_slots,
        precision.adapters,
        device,
        private=source.leased,
        extra_bytes=config.adapter_extras_mb * MIB,
    )
    if source.leased:
        _check_lock(adapter_pool, memory.pages, must_lock)
    adapters = AdapterManager(
        adapter_pool,
        source,
        workers=config.adapter_workers,
        host_bytes=_host_bytes(config, device),
        idle_seconds=config.adapter_idle_s,
        clock=clock,
    )
    runner = choose_runner(settings, adapters) if ranks is None else lead(settings, ranks, adapters)
    if ranks is not None and source.leased:
        adapter_pool.locked = ranks.must_lock = adapter_pool.locked and ranks.locked
        _check_lock(adapter_pool, memory.pages, must_lock)
    adapters.pipeline.base = runner.linears
    tiers = build_tiers(config, device, pool, runner.kv, memory.block_bytes)
    layout = kv_layout(
        base.fingerprint, runner.kv, precision, config.block_size, memory.block_bytes, ranks=config.tensor_parallel
    )
    planner = Planner(
        config.limits,
        pool,
        adapters,
        layout,
        targets=config.targets,
        costs=CostModel(knee=runner.cheap_rows),
        drafter=Drafter(base.tokenizer.eos_token_ids),
        max_draft_rows=runner.max_draft_rows,
        drafts_in_turn=runner.drafts_in_turn,
        tiers=tiers,
    )
    planner.exchange.attach(runner.kv, memory.block_bytes, layout)
    if runner.paces_loads and config.thread_count >= available_cores():
        adapters.gate.load_pause = _LOAD_PAUSE
    sharing = None
    if memory.boundary is not None and runner.elastic_memory:
        first = config.adapter_memory_mb << 20
        sharing = SharedMemory(memory.boundary, first, adapters, planner, memory.block_bytes, runner.give_back)
    log.info(
        "%d KV blocks of %d tokens, %d adapter pages, context %d",
        pool.limit,
        config.block_size,
        adapters.residents.page_limit,
        memory.max_len,
    )

    def make_output(request: Request) -> CompletionText:
        return CompletionText(base.tokenizer.detokenizer(), request.sampling.stop)

    engine = Engine(
        runner,
        planner,
        adapters,
        max_model_len=memory.max_len,
        eos_token_ids=base.tokenizer.eos_token_ids,
        make_output=make_output,
        threads=config.thread_count,
        sharing=sharing,
        clock=clock,
    )
    if ranks is not None:
        engine.on_end = ranks.close
        ranks.when_lost(engine.fail)
    _return_freed_memory()
    if memory.card is not None:
        free, total = torch.cuda.mem_get_info(device)
        log.info(
            "GPU memory: %d MiB in use of %d, planned %d", (total - free) // MIB, total // MIB, memory.card.used // MIB
        )
    if config.trace is not None:
        engine.trace = Trace(config.trace)
        runner.trace = engine.trace
    return engine


def kv_layout(
    fingerprint: str, kv: object, precision: Precision, block_size: int, block_bytes: int, *, ranks: int
) -> str:
    """Return the SHA-256 (hex) of all that a KV block's bytes depend on besides its tokens and its adapter.

    It is part of every block's key: replicas that compute in another precision, or lay blocks out otherwise, never
    find each other's. ranks: processes that each hold the KV of some heads
    """
    material = repr((fingerprint, type(kv).__qualname__, precision, block_size, block_bytes, ranks))
    return hashlib.sha256(b"intarsia/kv/layout/v1" + material.encode()).hexdigest()


def _check_lock(pool: AdapterPool, pages: int, must_lock: bool) -> None:
    """Raise ConfigError, or only say so, when adapters in `pool` could reach swap."""
    if pool.locked:
        return
    needed = pages * pool.spec.page_bytes(pool.dtype) >> 20
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] >> 10
    message = f"{needed} MiB of adapter memory cannot be locked in RAM (the limit, `ulimit -l`, is {limit} KiB)"
    if must_lock:
        raise ConfigError(f"{message}: raise the limit, or accept with --allow-unlocked-memory that weights reach swap")
    log.warning("%s: weights may reach swap", message)


def _return_freed_memory() -> None:
    """Return memory that loading allocated and freed to the system: glibc would keep 25 MB of it."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
