"""An engine with the layers, adapters and batch of a large replica, and rows so narrow that a CPU's torch is no part of
its time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import torch

from lora_kernels import AdapterPool, LoraPair
from lora_kernels.ops import triton_path
from serving.adapter_stats import AdapterCounters, AdapterGauges, LevelSeconds
from serving.adapters.gate import Gate
from serving.core import AdapterRef, Request
from serving.engine import Engine
from serving.errors import EngineError
from serving.kv.paged import PagedKV
from serving.kv.pool import BlockPool
from serving.models.config import Layer, ModelConfig
from serving.models.llama import pool_spec
from serving.models.llama_gpu import GpuLlama
from serving.models.loader import LayerWeights, ModelWeights
from serving.models.rope_config import Rope
from serving.runner.gpu import GpuRunner
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from serving.scheduler.slo import Target, Targets
from serving.steps import AdapterCost
from tests.serving.runner.driver import NoText
from tests.serving.runner.host_device import Device

BLOCK = 16
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, VOCAB = 4, 1, 16, 16, 16, 32
RANK = 16
CPU = torch.device("cpu")


class Resident:
    """`serving.ports.Adapters`: every adapter is there. Digest "3" is slot 3."""

    def __init__(self, config: ModelConfig, count: int) -> None:
        self.pool = AdapterPool(pool_spec(config), count + 1, count + 1, torch.float32, backend="torch")
        # Its kernels need a GPU, which the pool does not see.
        self.pool.backend = triton_path  # type: ignore[assignment]
        self.count = count
        self.on_arrival: Callable[[], None] = lambda: None
        self.counters, self.seconds, self.gate = AdapterCounters(), LevelSeconds(), Gate()
        self.loading, self.page_bytes = False, 1

    def load(self) -> None:
        """Load every adapter, at one site of one layer: a step's metadata is the same."""
        site = self.pool.spec.sites[0]
        one = LoraPair(torch.zeros(RANK, site.in_features), torch.zeros(site.slices[0], RANK), 1.0)
        for slot in range(self.count):
            self.pool.load(slot, {(0, site.name, 0): one})

    def slot(self, digest: str | None) -> int:
        return -1 if digest is None else int(digest)

    def cost(self, digest: str | None) -> AdapterCost:
        return AdapterCost(0 if digest is None else RANK, 1 << 20, 0.0)

    def is_ready(self, digest: str | None) -> bool:
        return True

    def gauges(self) -> AdapterGauges:
        return AdapterGauges(by_state={"ready": self.count})

    def poll(self) -> Iterable[tuple[str, EngineError]]:
        return ()

    def states(self) -> dict[str, str]:
        return {}

    def is_revoked(self, digest: str | None) -> bool:
        return False

    def revoke(self, digest: str) -> Collection[str]:
        return ()

    def pin(self, digest: str | None) -> None: ...
    def unpin(self, digest: str | None) -> None: ...
    def set_page_limit(self, pages: int) -> None: ...
    def hint(self, digests: Iterable[str]) -> None: ...
    def expect(self, ref: AdapterRef) -> None: ...
    def forget(self, ref: AdapterRef) -> None: ...
    def want(self, digests: Iterable[str]) -> None: ...
    def readmit(self, digest: str) -> None: ...
    def close(self) -> None: ...


class _NoKV(PagedKV):
    """KV that no kernel reads or writes; a copy of a block is a launch."""

    def __init__(self, device: Device, config: ModelConfig) -> None:
        super().__init__(config, 1, BLOCK, torch.float32, CPU)
        self._device = device

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        for pair in pairs:
            self._device.launch(pair)


def make_engine(
    device: Device, *, layers: int, max_rows: int, max_sequences: int, max_len: int, adapters: int, blocks: int
) -> Engine:
    """Build an engine on a device that does nothing, its graphs recorded and its adapters loaded; it is not warm.

    max_rows, max_sequences: the most tokens and sequences of a step; max_len: tokens; adapters, blocks: how many
    """
    config = ModelConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        layers=(Layer(Rope(10_000.0, HEAD_DIM)),) * layers,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position=max_len,
        rms_norm_eps=1e-5,
        tied_embeddings=True,
    )
    resident = Resident(config, adapters)
    kv = _NoKV(device, config)
    llama = GpuLlama(config, _weights(config), max_len, max_sequences)
    runner = GpuRunner(
        llama,
        kv,
        resident,
        max_rows=max_rows,
        max_samples=max_sequences,
        max_blocks=-(-max_len // BLOCK),
        graphs=device,
    )
    resident.load()
    # No step waits for its turn or its time: the mix is what was asked for.
    patient = Target(1e6, 1e6, 1e6)
    planner = Planner(
        Limits(max_rows, max_sequences, 4 * max_sequences),
        BlockPool(blocks, BLOCK),
        resident,
        "",
        targets=Targets(patient, patient, patient),
    )
    return Engine(
        runner,
        planner,
        resident,
        max_model_len=max_len,
        eos_token_ids=frozenset(),
        make_output=_no_text,
    )


def _no_text(request: Request) -> NoText:
    return NoText()


def _weights(config: ModelConfig) -> ModelWeights:
    def linear(out: int, width: int) -> torch.Tensor:
        return torch.zeros(out, width, dtype=torch.float32)

    norm = torch.zeros(config.hidden_size, dtype=torch.float32)
    layer = LayerWeights(
        input_norm=norm,
        qkv=linear(config.q_size + 2 * config.kv_size, config.hidden_size),
        o=linear(config.hidden_size, config.q_size),
        post_norm=norm,
        gate_up=linear(2 * config.intermediate_size, config.hidden_size),
        down=linear(config.hidden_size, config.intermediate_size),
    )
    embed = linear(config.vocab_size, config.hidden_size)
    return ModelWeights(embed, (layer,) * config.num_layers, norm, embed)
