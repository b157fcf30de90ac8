"""lora_apply's own promises: arguments are checked first, gradients and torch.compile work."""

from __future__ import annotations

import pytest
import torch

from lora_kernels import (
    AdapterPool,
    BatchMetadata,
    DeviceError,
    DtypeError,
    ShapeError,
    TargetError,
    lora_apply,
    lora_expand,
    lora_shrink,
)
from lora_kernels.cpu.backend import SiteTensors
from tests.lora_kernels.factories import activations, make_adapter, one_site
from tests.native_caller import needs_compiler

SPEC = one_site(32, (16, 24), layers=2)


@pytest.fixture
def meta() -> BatchMetadata:
    pool = AdapterPool(SPEC, 4, 2)
    pool.load(0, make_adapter(SPEC, 20))
    return BatchMetadata.build([0, -1], [3, 1], pool)


@pytest.mark.parametrize(
    ("error", "y", "x", "site", "layer"),
    [
        (TargetError, torch.zeros(4, 40), torch.zeros(4, 32), "other", 0),
        (TargetError, torch.zeros(4, 40), torch.zeros(4, 32), "site", 2),
        (TargetError, torch.zeros(4, 40), torch.zeros(4, 32), "site", -1),
        (ShapeError, torch.zeros(5, 40), torch.zeros(4, 32), "site", 0),
        (ShapeError, torch.zeros(4, 41), torch.zeros(4, 32), "site", 0),
        (ShapeError, torch.zeros(4, 40), torch.zeros(4, 31), "site", 0),
        (ShapeError, torch.zeros(4, 40), torch.zeros(4, 1, 32), "site", 0),
        (ShapeError, torch.zeros(1, 40).expand(4, 40), torch.zeros(4, 32), "site", 0),
        (DtypeError, torch.zeros(4, 40, dtype=torch.int32), torch.zeros(4, 32), "site", 0),
        (DtypeError, torch.zeros(4, 40), torch.zeros(4, 32, dtype=torch.float64), "site", 0),
        (DeviceError, torch.zeros(4, 40, device="meta"), torch.zeros(4, 32), "site", 0),
        (DeviceError, torch.zeros(4, 40), torch.zeros(4, 32, device="meta"), "site", 0),
    ],
)
def test_wrong_arguments_are_refused_before_y_is_written(error, y, x, site, layer, meta: BatchMetadata) -> None:
    before = y.clone()
    with pytest.raises(error):
        lora_apply(y, x, site, layer, meta)
    assert y.device.type == "meta" or torch.equal(y, before)


@pytest.mark.parametrize(
    ("error", "v"),
    [
        (ShapeError, torch.zeros(2, 4, 31)),
        (ShapeError, torch.zeros(1, 4, 32)),
        (ShapeError, torch.zeros(2, 5, 32)),
        (DtypeError, torch.zeros(2, 4, 32, dtype=torch.bfloat16)),
        (DeviceError, torch.zeros(2, 4, 32, device="meta")),
    ],
)
def test_a_wrong_v_is_refused(error, v: torch.Tensor, meta: BatchMetadata) -> None:
    with pytest.raises(error):
        lora_shrink(torch.zeros(4, 32), "site", 0, meta, v)
    with pytest.raises(error):
        lora_expand(v, "site", 0, meta, torch.zeros(4, 40))


def test_gradients_flow_through_x(meta: BatchMetadata) -> None:
    x = torch.randn(4, 32, requires_grad=True)
    delta = lora_apply(torch.zeros(4, 40), x, "site", 1, meta)
    delta.sum().backward()
    assert x.grad is not None and x.grad[:3].abs().sum() > 0
    assert not x.grad[3].any()
    with torch.no_grad():
        torch.testing.assert_close(lora_apply(torch.zeros(4, 40), x, "site", 1, meta), delta)


@needs_compiler
def test_the_custom_op_is_sound_and_traces_as_one_graph(meta: BatchMetadata) -> None:
    y, x = activations(meta, torch.float32)
    expected = lora_apply(y.clone(), x, "site", 1, meta)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(str(graph.code))
        return graph.forward

    compiled = torch.compile(lambda y, x: lora_apply(y, x, "site", 1, meta), fullgraph=True, backend=backend)
    with torch.inference_mode():
        result = compiled(y.clone(), x)
    assert torch.equal(result, expected)
    assert len(graphs) == 1 and "lora_kernels.sgmv_" in graphs[0]

    storage = meta.pool.site("site")
    site = [tensor for tensor in SiteTensors.of(storage, 1) if tensor is not None]
    rows = [meta.row_order, meta.segment_starts, meta.segment_slots]
    arguments = (y.contiguous(), x, site, storage.offsets, storage.b_offsets, rows)
    torch.library.opcheck(torch.ops.lora_kernels.sgmv_.default, arguments)
