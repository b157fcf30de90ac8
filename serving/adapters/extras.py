"""From an adapter's extras in its file to extras for kernels.

What depends on the base is computed at the load, from the weights that are served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from lora_kernels import AdapterPool, LoraPair, NonFiniteError, PoolSpec, Reservation
from lora_kernels.extras import Extras, ExtraWriter, Factors, TokenRows
from serving.adapters.gate import Pause, go_on
from serving.ports import BaseLinears

# (layer, site, slice)
Place = tuple[int, str, int]


@dataclass(frozen=True, slots=True, eq=False)
class FileExtras:
    """An adapter's extras as its file has them, views of its data. See `sealed_weights.intake.extras.ExtraTensors`.

    b_biases: with the scales that they are multiplied by
    embedding_rows, head_rows: token ids and rows
    """

    magnitudes: Mapping[Place, torch.Tensor] = field(default_factory=dict)
    biases: Mapping[Place, torch.Tensor] = field(default_factory=dict)
    b_biases: Mapping[Place, tuple[torch.Tensor, float]] = field(default_factory=dict)
    embedding: LoraPair | None = None
    head: LoraPair | None = None
    head_magnitude: torch.Tensor | None = None
    embedding_rows: tuple[tuple[int, ...], torch.Tensor] | None = None
    head_rows: tuple[tuple[int, ...], torch.Tensor] | None = None

    @property
    def source_bytes(self) -> int:
        """Return the bytes that the file has of them."""
        pairs = [pair for pair in (self.embedding, self.head) if pair is not None]
        rows = {id(rows): rows[1] for rows in (self.embedding_rows, self.head_rows) if rows is not None}
        tensors = [
            *self.magnitudes.values(),
            *self.biases.values(),
            *(bias for bias, _ in self.b_biases.values()),
            *(tensor for pair in pairs for tensor in (pair.a, pair.b)),
            *rows.values(),
        ]
        return sum(tensor.nbytes for tensor in tensors)

    def nbytes(self, spec: PoolSpec) -> int:
        """Return the bytes that the extras take when they are resident."""
        writer = ExtraWriter(None)
        _lay_out(self, spec, writer)
        return writer.nbytes

    def first_layers(self, count: int) -> FileExtras:
        """Return those of a model that is cut off after so many layers."""
        return replace(
            self,
            magnitudes={place: part for place, part in self.magnitudes.items() if place[0] < count},
            biases={place: part for place, part in self.biases.items() if place[0] < count},
            b_biases={place: part for place, part in self.b_biases.items() if place[0] < count},
        )


class AdapterWithExtras(dict[Place, LoraPair]):
    """Pairs of an adapter that has extras too."""

    def __init__(self, pairs: Mapping[Place, LoraPair], extras: FileExtras) -> None:
        super().__init__(pairs)
        self.extras = extras


def load_at_once(pool: AdapterPool, slot: int, pairs: Mapping[Place, LoraPair], base: BaseLinears) -> None:
    """Make an adapter `slot`, extras and all, in the thread that launches kernels; raises what its parts raise."""
    reservation = pool.reserve(pool.pages_needed(pairs), bytes_of(pairs, pool.spec))
    try:
        reservation.write(pairs)
        write_extras(reservation, pairs, pool.spec, base, go_on)
        reservation.wait()
    except BaseException:
        pool.cancel(reservation)
        raise
    pool.publish(slot, reservation)


def write_extras(
    reservation: Reservation, pairs: Mapping[Place, LoraPair], spec: PoolSpec, base: BaseLinears, pause: Pause
) -> None:
    """Write an adapter's extras into a reservation that has memory for them; nothing to do for a plain adapter."""
    adapter, memory = with_extras(pairs), reservation.extra_memory
    if adapter is not None and memory is not None:
        reservation.extras = fill(adapter, spec, base, memory, pause)


def fill(adapter: AdapterWithExtras, spec: PoolSpec, base: BaseLinears, memory: torch.Tensor, pause: Pause) -> Extras:
    """Write an adapter's extras into zeroed memory of `FileExtras.nbytes` bytes.

    DoRA's scale of an output is m / ‖W + s·B·A‖ of its row, with
    ‖W_i + s·B_i·A‖² = ‖W_i‖² + 2s·B_i·(A·W_iᵀ) + s²·B_i·(A·Aᵀ)·B_iᵀ: a base product of r rows, as many as a prompt has
    tokens. Raises NonFiniteError where a row's norm is 0.
    """
    source = adapter.extras
    extras = _lay_out(source, spec, ExtraWriter(memory))
    starts = {site.name: [sum(site.slices[:index]) for index in range(len(site.slices))] for site in spec.sites}
    for place, magnitude in source.magnitudes.items():
        pause()
        layer, site, index = place
        out = _part(extras.scales[layer, site], starts[site][index], magnitude)
        _scale_rows(out, magnitude, adapter[place], base, layer, site, starts[site][index])
    for (layer, site, index), bias in source.biases.items():
        out = _part(extras.biases[layer, site], starts[site][index], bias)
        own = base.bias(layer, site)
        assert own is not None  # intake accepts biases of modules that have one
        out.copy_(bias).sub_(own[starts[site][index] :][: len(bias)])
    for (layer, site, index), (bias, scale) in source.b_biases.items():
        out = _part(extras.biases[layer, site], starts[site][index], bias)
        out.add_(bias.to(out.device, torch.float32), alpha=scale)
    pause()
    _fill_vocabulary(extras, source, base)
    if memory.is_cuda:
        torch.cuda.current_stream(memory.device).synchronize()
    return extras


def _lay_out(source: FileExtras, spec: PoolSpec, writer: ExtraWriter) -> Extras:
    widths = {site.name: site.out_features for site in spec.sites}
    take = writer.take
    scaled = dict.fromkeys((layer, site) for layer, site, _ in source.magnitudes)
    biased = dict.fromkeys((layer, site) for layer, site, _ in (*source.biases, *source.b_biases))
    scales = {place: take(widths[place[1]]).fill_(1.0) for place in scaled}
    biases = {place: take(widths[place[1]]) for place in biased}
    embed = head = head_scale = None
    if source.embedding is not None:
        rank, vocabulary = source.embedding.a.shape
        embed = Factors(take(vocabulary, rank), take(rank, len(source.embedding.b)))
    if source.head is not None:
        rank, hidden = source.head.a.shape
        head = Factors(take(rank, hidden), take(rank, len(source.head.b)))
        head_scale = None if source.head_magnitude is None else take(len(source.head.b))
    embed_tokens = _token_rows(source.embedding_rows, take)
    head_tokens = embed_tokens if source.head_rows is source.embedding_rows else _token_rows(source.head_rows, take)
    return Extras(writer.memory, scales, biases, embed, head, head_scale, embed_tokens, head_tokens)


def _token_rows(
    rows: tuple[tuple[int, ...], torch.Tensor] | None, take: Callable[..., torch.Tensor]
) -> TokenRows | None:
    if rows is None:
        return None
    ids, values = rows
    return TokenRows(take(len(ids)).view(torch.int32), take(*values.shape))


def _part(whole: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    return whole[start : start + len(like)]


def _scale_rows(
    out: torch.Tensor,
    magnitude: torch.Tensor,
    pair: LoraPair,
    base: BaseLinears,
    layer: int,
    site: str,
    start: int,
) -> None:
    end, device = start + len(out), out.device
    # Float64: where ΔW cancels most of W, the three sums do too.
    a, b = pair.a.to(device, torch.float64, copy=True), pair.b.T.to(device, torch.float64, copy=True)
    x = a.float()
    products = base.products(layer, site, x)[:, start:end].to(device, torch.float64)
    gram = a @ a.T
    inner = torch.addmm(products, gram, b, beta=2.0, alpha=pair.scale)  # 2·A·Wᵀ + s·A·Aᵀ·Bᵀ
    norms = inner.mul_(b).sum(0).mul_(pair.scale).add_(base.squares(layer, site)[start:end].to(device))
    out.copy_(magnitude.to(device, torch.float64) / norms.clamp_(min=0).sqrt_())
    for temporary in (a, b, x, products, gram, inner, norms):
        temporary.zero_()
    if not out.isfinite().all():
        raise NonFiniteError(f"layer {layer}, {site}: W + ΔW has a row of zeros, which DoRA cannot scale")


def _fill_vocabulary(extras: Extras, source: FileExtras, base: BaseLinears) -> None:
    if extras.embed is not None and source.embedding is not None:
        extras.embed.down.copy_(source.embedding.a.T)
        extras.embed.up.copy_(source.embedding.b.T).mul_(source.embedding.scale)
    if extras.head is not None and source.head is not None:
        extras.head.down.copy_(source.head.a)
        extras.head.up.copy_(source.head.b.T).mul_(source.head.scale)
        if extras.head_scale is not None and source.head_magnitude is not None:
            _scale_rows(extras.head_scale, source.head_magnitude, source.head, base, 0, "head", 0)
    for resident, rows in ((extras.embed_tokens, source.embedding_rows), (extras.head_tokens, source.head_rows)):
        if resident is not None and rows is not None:
            order = sorted(range(len(rows[0])), key=rows[0].__getitem__)
            resident.ids.copy_(torch.tensor([rows[0][place] for place in order], dtype=torch.int32))
            resident.rows.copy_(rows[1][order])


def bytes_in_host_memory(pairs: Mapping[Place, LoraPair]) -> int:
    """Return the bytes of an adapter as its file has it."""
    adapter = with_extras(pairs)
    factors = sum(pair.a.nbytes + pair.b.nbytes for pair in pairs.values())
    return factors if adapter is None else factors + adapter.extras.source_bytes


def bytes_of(pairs: Mapping[Place, LoraPair], spec: PoolSpec) -> int:
    """Return the bytes of extras that an adapter needs beside its pages; 0 for a plain one."""
    adapter = with_extras(pairs)
    return 0 if adapter is None else adapter.extras.nbytes(spec)


def with_extras(pairs: Mapping[Place, LoraPair]) -> AdapterWithExtras | None:
    """Return the adapter if it has extras."""
    return pairs if isinstance(pairs, AdapterWithExtras) else None
