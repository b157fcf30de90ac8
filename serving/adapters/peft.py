"""From the two files of a PEFT adapter to kernel tensors. Strict intake first: see `sealed_weights.intake`."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from lora_kernels import AdapterTensors, LoraPair
from sealed_weights import (
    MAX_FACTOR_NORM,
    MAX_UPDATE_NORM,
    AdapterConfig,
    BaseSpec,
    check_adapter,
    check_layout,
    check_patterns,
    parse_adapter_config,
)
from sealed_weights.intake.architectures import ARCHITECTURES
from sealed_weights.intake.extras import EMBEDDING, HEAD, ExtraTensors
from sealed_weights.intake.safetensors_header import TensorInfo
from serving.adapters.extras import AdapterWithExtras, FileExtras
from serving.adapters.gate import Pause, go_on

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Module suffix ("self_attn.k_proj") → (site, slice of the fused weight), of all families: no two disagree.
_PLACE = {
    part: (site, index)
    for family in ARCHITECTURES.values()
    for site, parts in family.sites.items()
    for index, part in enumerate(parts)
}
_LAYOUTS = 64


@dataclass(frozen=True, slots=True)
class _Pair:
    """One module: where it belongs, and which of the file's tensors are its A and B."""

    module: str
    target: tuple[int, str, int]
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """How to cut a file's data; the same for every adapter with this header and these settings, except for alphas.

    shapes: of the tensors, in the order of their data; they repeat every `period` tensors, which is one layer in most
        adapters
    extras: what else the file has, and where; its tensors are then cut one by one
    """

    dtype: torch.dtype
    start: int
    shapes: tuple[tuple[int, ...], ...]
    period: int
    pairs: tuple[_Pair, ...]
    extras: ExtraTensors
    infos: Mapping[str, TensorInfo]


class PeftReader:
    """Reads adapters of one base. Thread-safe.

    Adapters trained with one script share their settings, except perhaps alpha, and every byte of their header. Both
    are checked once and remembered: a hash of 55 KB replaces 10 ms of Python under the GIL for an adapter of 420
    tensors.
    """

    def __init__(self, base: BaseSpec) -> None:
        self._base = base
        self._layouts: OrderedDict[bytes, _Layout] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, config: bytes, data: bytearray | memoryview, pause: Pause = go_on) -> AdapterTensors:
        """Read and check the adapter in `config` (adapter_config.json) and `data` (adapter_model.safetensors).

        The tensors are views of `data`: keep it until they are copied. Raises IntakeError naming the field and the
        rule.
        """
        view = memoryview(data)
        settings = parse_adapter_config(config)
        check_patterns(settings, self._base)  # a remembered layout says nothing of patterns of alphas
        layout = self._layout(config, settings, view)
        pause()
        scales = [settings.scale_of(pair.module) for pair in layout.pairs]
        if layout.extras:
            return self._read_with_extras(config, view, settings, layout, pause)
        flat = torch.frombuffer(view, dtype=layout.dtype, offset=layout.start)
        parts = _cut(flat, layout)
        pause()
        if not (_small_together(flat, max(scales)) or _within_bounds(parts, layout, scales)):
            check_adapter((config, view), self._base)  # names the tensor, or finds float32 to have been too coarse
        pause()
        return {
            pair.target: LoraPair(parts[pair.a], parts[pair.b], scale)
            for pair, scale in zip(layout.pairs, scales, strict=True)
        }

    def _read_with_extras(
        self, config: bytes, view: memoryview, settings: AdapterConfig, layout: _Layout, pause: Pause
    ) -> AdapterTensors:
        extras = check_adapter((config, view), self._base).extras  # reads every value, in the settings' own scales
        pause()

        def tensor(name: str) -> torch.Tensor:
            info = layout.infos[name]
            count = math.prod(info.shape)
            return torch.frombuffer(view, dtype=_DTYPES[info.dtype], count=count, offset=info.start).view(info.shape)

        def pair(module: str, a: str, b: str) -> LoraPair:
            return LoraPair(tensor(a), tensor(b), settings.scale_of(module))

        names = list(layout.infos)
        pairs = {one.target: pair(one.module, names[one.a], names[one.b]) for one in layout.pairs}
        places = {one.module: one.target for one in layout.pairs}
        magnitudes = dict(extras.magnitudes)
        head_magnitude = magnitudes.pop(HEAD, None)
        embedding, head = extras.embedding, extras.head
        rows = [
            None if of is None else (of.tokens, tensor(of.name)) for of in (extras.embedding_rows, extras.head_rows)
        ]
        if extras.head_rows is not None and extras.head_rows is extras.embedding_rows:
            rows[1] = rows[0]
        return AdapterWithExtras(
            pairs,
            FileExtras(
                magnitudes={places[module]: tensor(name) for module, name in magnitudes.items()},
                biases={_place(module): tensor(name) for module, name in extras.biases.items()},
                b_biases={
                    places[module]: (tensor(name), settings.scale_of(module))
                    for module, name in extras.b_biases.items()
                },
                embedding=None if embedding is None else pair(EMBEDDING, embedding.a, embedding.b),
                head=None if head is None else pair(HEAD, head.a, head.b),
                head_magnitude=None if head_magnitude is None else tensor(head_magnitude),
                embedding_rows=rows[0],
                head_rows=rows[1],
            ),
        )

    def _layout(self, config: bytes, settings: AdapterConfig, view: memoryview) -> _Layout:
        header = view[: 8 + min(int.from_bytes(view[:8], "little"), 1 << 20)]
        # The rest names modules and ranks: the parser dropped keys without a meaning here, and alphas only scale.
        named = repr(replace(settings, lora_alpha=1.0, alpha_pattern={})).encode()
        hasher = hashlib.sha256(len(named).to_bytes(8, "big") + named + len(view).to_bytes(8, "big"))
        hasher.update(header)
        key = hasher.digest()
        with self._lock:
            layout = self._layouts.get(key)
            if layout is not None:
                self._layouts.move_to_end(key)
                return layout
        layout = _read_layout(config, view, self._base)
        with self._lock:
            self._layouts[key] = layout
            if len(self._layouts) > _LAYOUTS:
                self._layouts.popitem(last=False)
        return layout


def _read_layout(config: bytes, view: memoryview, base: BaseSpec) -> _Layout:
    checked = check_layout(config, view, base)
    dtype = _DTYPES[checked.summary.dtype]
    index = {name: i for i, name in enumerate(checked.tensors)}
    infos = list(checked.tensors.values())
    pairs = []
    for module in checked.summary.ranks:
        a, b = (index[f"base_model.model.{module}.lora_{factor}.weight"] for factor in "AB")
        pairs.append(_Pair(module, _place(module), a, b))
    shapes = tuple(info.shape for info in infos)
    extras = checked.summary.extras
    return _Layout(dtype, infos[0].start, shapes, _period(shapes), tuple(pairs), extras, checked.tensors)


def _place(module: str) -> tuple[int, str, int]:
    """Return where a module of a layer ("model.layers.0.self_attn.k_proj") belongs."""
    _, _, layer, suffix = module.split(".", 3)
    site, slice_index = _PLACE[suffix]
    return int(layer), site, slice_index


def _period(shapes: tuple[tuple[int, ...], ...]) -> int:
    count = len(shapes)
    return next(p for p in range(1, count + 1) if count % p == 0 and shapes == shapes[:p] * (count // p))


def _cut(flat: torch.Tensor, layout: _Layout) -> list[torch.Tensor]:
    """Return the file's tensors as views. A few calls cut all layers at once: 420 single views take 1.5 ms more."""
    shapes, period = layout.shapes, layout.period
    columns = flat.view(-1, sum(map(math.prod, shapes[:period]))).split([*map(math.prod, shapes[:period])], 1)
    cut = [column.unflatten(1, shape).unbind(0) for column, shape in zip(columns, shapes, strict=False)]
    return [cut[index % period][index // period] for index in range(len(shapes))]


def _small_together(flat: torch.Tensor, max_scale: float) -> bool:
    """Return whether the norm of all values at once is within the bounds on each tensor, as it is for most adapters.

    One pass at 16 GB/s takes a quarter of the time of 420 norms. The norm of all values bounds each tensor's norm, and
    half its square bounds each pair's product, because 2ab <= a² + b². The norm is rounded to the file's dtype, to 8
    bits at worst.
    """
    norm = 1.01 * float(torch.linalg.vector_norm(flat))
    return norm <= MAX_FACTOR_NORM and max_scale * norm * norm / 2 <= MAX_UPDATE_NORM


def _within_bounds(parts: list[torch.Tensor], layout: _Layout, scales: list[float]) -> bool:
    """Return whether every value is finite and every norm allowed, in float32. One call without the GIL does it all."""
    norms = torch.stack(torch._foreach_norm(parts, 2, dtype=torch.float32)).tolist()
    # A NaN fails every comparison.
    return all(norm <= MAX_FACTOR_NORM for norm in norms) and all(
        scale * norms[pair.a] * norms[pair.b] <= MAX_UPDATE_NORM
        for pair, scale in zip(layout.pairs, scales, strict=True)
    )
