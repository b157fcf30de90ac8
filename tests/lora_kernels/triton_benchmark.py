"""The GPU benchmark as far as it goes without a GPU: small inputs, interpreted. Run like triton_cases.py."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.kernels import gpu, gpu_contenders, gpu_grid, gpu_sweep
from benchmarks.kernels.gpu_peers import PeerMissingError
from benchmarks.kernels.gpu_prefill import Prefill
from lora_kernels import SiteSpec
from lora_kernels.ops import tuning


def the_grid_is_the_promised_one() -> None:
    points = gpu_grid.points(quick=False)
    assert len(set(points)) == len(points) == 4 * (1 + 4 * 3) * 4
    assert set(gpu_grid.points(quick=True)) < set(points)
    for point in points:
        rows = point.row_adapters(0)
        ranks = point.adapter_ranks(max(rows) + 1)
        assert len(rows) == point.batch and set(rows) == set(range(len(ranks)))
        assert point.limit_bytes(ranks) > point.weight_bytes(ranks) and 2 <= point.layers(ranks) <= 32
    qkv = gpu_grid.GpuPoint("qkv", 8, "distinct", "16")
    assert qkv.weight_bytes([16] * 8) == 2 * 8 * 16 * (3 * 4096 + 6144)


def contenders_agree_and_missing_peers_say_why() -> None:
    gpu_grid.SITES["qkv"] = SiteSpec("qkv", 256, (64, 32, 32))
    gpu_grid.MOST_LAYERS = 2
    missing = []
    for ranks, distribution in (("16", "distinct"), ("mixed", "zipf")):
        point = gpu_grid.GpuPoint("qkv", 5, distribution, ranks)
        inputs = gpu_grid.make_inputs(point, 0, torch.device("cpu"), torch.float16)
        for name, make in gpu_contenders.CONTENDERS.items():
            try:
                gpu.check(name, make(inputs), inputs)
            except PeerMissingError as error:
                missing.append((name, str(error)))
        broken = gpu_contenders.peft_loop(inputs)
        try:
            gpu.check("broken", lambda layer, y, call=broken: call(layer - 1, y), inputs)
        except RuntimeError as error:
            assert "broken is wrong" in str(error)
        else:
            raise AssertionError("another layer's weights passed for right")
    assert {name for name, _ in missing} == {"vllm", "csgmv", "triton_v2"}
    assert all("WHEEL is not set" in reason for _, reason in missing)


def tables_and_files_hold_what_was_measured() -> None:
    point = gpu_grid.GpuPoint("o", 64, "distinct", "8")
    result = gpu.Measured(point, 64, 32, 8.0, {"ours": 10.0, "vllm": 30.0, "csgmv": 14.0}, {"triton_v2": "not here"})
    found = gpu.promises([result], Prefill(base_ms=10.0, added_ms=12.0, first_ms=10.5))
    by_name = {promise.name: promise for promise in found}
    assert [promise.holds for promise in found] == [True, False, False, True, True]
    assert by_name["× triton_v2 (geometric mean)"].value is None
    assert "not measured × triton_v2" in gpu.promise_lines(found)
    assert len(gpu.row(result)) <= len(gpu.header()) and "30.0" in gpu.row(result)
    assert not any(promise.holds for promise in gpu.promises([], None))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        gpu.write_json(file, [result], None, {"machine": "none"})
        assert gpu.read_json(file) == [result]


def the_sweep_writes_what_the_launches_read() -> None:
    base = tuning.untuned(4096)
    tried = list(gpu_sweep.candidates(base))
    assert len(set(tried)) == len(tried) > 20
    for config in tried:
        read = tuning.parse_config(base, json.loads(json.dumps(gpu_sweep.changes(base, config))))
        assert read == config
    other = replace(base, pdl=False)
    with tuning.using(other):
        assert tuning.config_for(gpu_grid.SITES["o"], torch.device("cpu")) is other
    assert tuning.config_for(gpu_grid.SITES["o"], torch.device("cpu")) == base
    assert tuning.file_name("NVIDIA H200") == "NVIDIA_H200.json"
    for wrong in ({"speed": 1}, {"split": 3, "inner": 2}, {"shrink": {"block": 96}}, {"shrink": {"block": 256}}):
        try:
            tuning.parse_config(base, wrong)
        except ValueError:
            continue
        raise AssertionError(f"{wrong} was taken")


if __name__ == "__main__":
    the_grid_is_the_promised_one()
    tables_and_files_hold_what_was_measured()
    the_sweep_writes_what_the_launches_read()
    contenders_agree_and_missing_peers_say_why()
    assert gpu.main(["--quick"]) == 2 and gpu_sweep.main([]) == 2, "without CUDA nothing may be measured"
