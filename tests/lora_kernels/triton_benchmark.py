"""The GPU benchmark of the LoRA kernels as far as it goes without a GPU: small inputs, interpreted."""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from benchmarks.gpu import contenders, grid, peers, sweep
from benchmarks.gpu.wheels import PeerMissingError
from lora_kernels import SiteSpec
from lora_kernels.ops import tuning


def the_grid_is_the_promised_one() -> None:
    points = grid.points()
    assert len(set(points)) == len(points) == 2 * (1 + 2 * 2) * 2
    for point in points:
        rows = point.row_adapters(0)
        ranks = point.adapter_ranks(max(rows) + 1)
        assert len(rows) == point.batch and set(rows) == set(range(len(ranks)))
        assert point.limit_bytes(ranks) > point.weight_bytes(ranks) and 2 <= point.layers(ranks) <= 32
    qkv = grid.GpuPoint("qkv", 8, "distinct", "16")
    assert qkv.weight_bytes([16] * 8) == 2 * 8 * 16 * (3 * 4096 + 6144)


def contenders_agree_and_missing_peers_say_why() -> None:
    grid.SITES["qkv"] = SiteSpec("qkv", 256, (64, 32, 32))
    grid.MOST_LAYERS = 2
    missing = []
    for ranks, distribution in (("16", "distinct"), ("mixed", "zipf")):
        point = grid.GpuPoint("qkv", 5, distribution, ranks)
        inputs = grid.make_inputs(point, 0, torch.device("cpu"), torch.float16)
        for name, make in contenders.CONTENDERS.items():
            try:
                peers.check(name, make(inputs), inputs)
            except PeerMissingError as error:
                missing.append((name, str(error)))
        ours = contenders.ours(inputs)
        try:
            peers.check("broken", lambda layer, y, call=ours: call(layer - 1, y), inputs)
        except RuntimeError as error:
            assert "broken is wrong" in str(error)
        else:
            raise AssertionError("another layer's weights passed for right")
    assert {name for name, _ in missing} == {"vllm", "csgmv", "triton_v2"}
    assert all("WHEEL is not set" in reason for _, reason in missing)


def promises_that_do_not_hold_are_said_and_what_was_not_measured_is_not() -> None:
    point = grid.GpuPoint("o", 64, "distinct", "16")
    result = peers.Measured(point, 64, 32, 8.0, {"ours": 10.0, "vllm": 30.0, "csgmv": 14.0}, {"triton_v2": "not here"})
    missed = peers.missed_bars([result], peers.Prefill(base_ms=10.0, added_ms=12.0, first_ms=10.5))
    assert missed == ["LoRA kernels: 1.40 × csgmv, 1.5 wanted"]
    slow = peers.missed_bars([replace(result, limit_us=7.0, us={"ours": 10.0})], peers.Prefill(10.0, 12.0, 11.0))
    assert slow == [
        "LoRA kernels: 0.70 of the byte limit, 32 adapters or more, 0.75 wanted",
        "LoRA kernels: 0.10 of a prefill's base GEMMs, 0.08 wanted at most",
    ]
    assert peers.missed_bars([], None) == []


def the_sweep_writes_what_the_launches_read() -> None:
    base = tuning.untuned(4096)
    tried = list(sweep.candidates(base))
    assert len(set(tried)) == len(tried) > 20
    for config in tried:
        read = tuning.parse_config(base, json.loads(json.dumps(sweep.changes(base, config))))
        assert read == config
    other = replace(base, pdl=False)
    with tuning.using(other):
        assert tuning.config_for(grid.SITES["o"], torch.device("cpu")) is other
    assert tuning.config_for(grid.SITES["o"], torch.device("cpu")) == base
    assert tuning.file_name("NVIDIA H200") == "NVIDIA_H200.json"
    for wrong in ({"speed": 1}, {"split": 3, "inner": 2}, {"shrink": {"block": 96}}, {"shrink": {"block": 256}}):
        try:
            tuning.parse_config(base, wrong)
        except ValueError:
            continue
        raise AssertionError(f"{wrong} was taken")


if __name__ == "__main__":
    the_grid_is_the_promised_one()
    promises_that_do_not_hold_are_said_and_what_was_not_measured_is_not()
    the_sweep_writes_what_the_launches_read()
    contenders_agree_and_missing_peers_say_why()
