"""Extras come and go with their adapter: counted, zeroed, never another's, and never in a blend."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lora_kernels import AdapterTensors, BatchMetadata, lora_apply
from serving.adapters.extras import AdapterWithExtras, FileExtras
from serving.adapters.gate import Pause, go_on
from serving.core import AdapterRef
from tests.serving.adapters.fakes import SPEC, Running, Source, digest_of

PLAIN, ONE, OTHER = digest_of(1), digest_of(2), digest_of(3)


class Linears:
    """A base of random weights."""

    def weight(self, layer: int, site: str) -> torch.Tensor:
        spec = next(one for one in SPEC.sites if one.name == site)
        return torch.randn(spec.out_features, spec.in_features, generator=torch.Generator().manual_seed(layer))

    def products(self, layer: int, site: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight(layer, site).T

    def squares(self, layer: int, site: str) -> torch.Tensor:
        return self.weight(layer, site).square().sum(1)

    def bias(self, layer: int, site: str) -> torch.Tensor | None:
        return None


class WithExtras(Source):
    """All adapters but PLAIN have DoRA in the site "o"."""

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        pairs: Any = super().load(digest, pause)
        if digest == PLAIN:
            return pairs
        return AdapterWithExtras(pairs, FileExtras(magnitudes={(0, "o", 0): torch.arange(1.0, 33.0)}))


@pytest.fixture
def run() -> Any:
    running = Running(WithExtras(), pages=8, slots=4)
    running.manager.pipeline.base = Linears()
    yield running
    running.close()
    assert running.pool.extras.used == 0 and not running.pool.has_extras and running.failed == []


def output(run: Running, digest: str) -> torch.Tensor:
    x = torch.linspace(-1, 1, 32)[None]
    y = x @ Linears().weight(0, "o").T
    return lora_apply(y, x, "o", 0, BatchMetadata.build([run.manager.slot(digest)], [1], run.pool))


def test_dora_scales_the_rows_of_w_and_its_update_to_the_magnitudes(run: Running) -> None:
    run.load(ONE, PLAIN)
    pair = Source().load(ONE)[0, "o", 0]
    whole = Linears().weight(0, "o") + pair.scale * pair.b @ pair.a
    expected = torch.linspace(-1, 1, 32)[None] @ (whole / whole.norm(dim=1, keepdim=True)).T * torch.arange(1.0, 33.0)
    torch.testing.assert_close(output(run, ONE), expected, rtol=1e-4, atol=1e-4)
    plain = Source().load(PLAIN)[0, "o", 0]
    unscaled = torch.linspace(-1, 1, 32)[None] @ (Linears().weight(0, "o") + plain.scale * plain.b @ plain.a).T
    torch.testing.assert_close(output(run, PLAIN), unscaled, rtol=1e-4, atol=1e-4)


def test_a_revoked_adapter_s_extras_are_zeroed_when_its_last_pin_goes(run: Running) -> None:
    run.load(ONE)
    extras = run.pool.extras_of(run.manager.slot(ONE))
    assert extras is not None and run.manager.gauges().extra_bytes == extras.memory.nbytes > 0
    run.manager.pin(ONE)
    run.manager.revoke(ONE)
    assert extras.memory.any()
    run.manager.unpin(ONE)
    assert not extras.memory.any() and run.pool.extras.used == 0


def test_a_slot_has_nothing_of_the_adapter_before(run: Running) -> None:
    run.load(PLAIN)
    before = output(run, PLAIN)
    run.manager.revoke(PLAIN)
    run.manager.readmit(PLAIN)
    run.load(ONE)
    run.manager.revoke(ONE)
    run.load(PLAIN)
    assert torch.equal(output(run, PLAIN), before)


def test_room_for_extras_is_made_by_evicting_those_that_have_some(run: Running) -> None:
    run.pool.extras.limit = 200  # one adapter's: 32 floats
    run.load(PLAIN, ONE)
    run.load(OTHER)
    assert run.manager.is_ready(PLAIN) and run.manager.is_ready(OTHER) and not run.manager.is_ready(ONE)


def test_an_adapter_whose_extras_never_fit_is_refused(run: Running) -> None:
    run.pool.extras.limit = 64
    run.manager.want([ONE])
    run.until(lambda: bool(run.failed))
    (digest, error) = run.failed.pop()
    assert digest == ONE and "128 bytes for its extras, there are 64" in str(error)
    assert run.pool.free_pages == 8 and run.plaintext_left() == 0


def test_a_blend_with_extras_is_refused_and_its_parts_stay(run: Running) -> None:
    ref = AdapterRef.blend([(PLAIN, 0.5), (ONE, 0.5)])
    run.manager.expect(ref)
    run.manager.want([str(ref.digest)])
    run.until(lambda: bool(run.failed))
    (digest, error) = run.failed.pop()
    assert digest == ref.digest and "cannot be blended" in str(error)
    run.manager.forget(ref)
    assert run.manager.is_ready(PLAIN) and run.manager.is_ready(ONE)


def test_a_row_of_zeros_is_refused_and_leaves_nothing(run: Running) -> None:
    linears = Linears()
    linears.squares = lambda layer, site: torch.zeros(32)  # type: ignore[method-assign]
    linears.products = lambda layer, site, x: torch.full((16, 32), -1e6)  # type: ignore[method-assign]
    run.manager.pipeline.base = linears
    run.manager.want([ONE])
    run.until(lambda: bool(run.failed))
    assert "row of zeros" in str(run.failed.pop()[1])
    assert run.pool.extras.used == 0 and run.pool.free_pages == 8
