"""A whole adapter against its base: the plain one passes, every deviation is refused by field and rule."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealed_weights import BaseSpec, IntakeError, check_adapter
from sealed_weights.contract import parse_contract
from tests.sealed_weights.factories import (
    BASE,
    BASE_FINGERPRINT,
    HF_CONFIG,
    Tensors,
    adapter_tensors,
    config_bytes,
    safetensors_bytes,
    tensor,
    write_adapter,
)

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


def check(tensors: Tensors | None = None, **changes: Any) -> Any:
    return check_adapter((config_bytes(changes), safetensors_bytes(tensors or adapter_tensors())), BASE)


def refused(tensors: Tensors | None = None, **changes: Any) -> IntakeError:
    with pytest.raises(IntakeError) as caught:
        check(tensors, **changes)
    return caught.value


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_plain_adapter_passes_and_is_summarised(dtype: str) -> None:
    summary = check(adapter_tensors(dtype=dtype))
    assert (summary.rank, summary.dtype, summary.tensor_count) == (2, dtype, 8)
    assert summary.targets == ("self_attn.q_proj", "self_attn.v_proj")
    assert summary.parameter_count == 2 * 2 * (16 + 16 + 16 + 8)
    assert set(summary.ranks) == {
        f"model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in ("q_proj", "v_proj")
    }
    assert set(summary.scales.values()) == {2.0} and set(summary.alphas.values()) == {4.0}
    assert not summary.use_rslora


def test_a_folder_gives_the_same_summary_as_its_bytes(tmp_path: Path) -> None:
    summary = check_adapter(write_adapter(tmp_path / "a"), BASE)
    assert summary == check()
    assert summary.bytes == (tmp_path / "a" / "adapter_model.safetensors").stat().st_size


@pytest.mark.parametrize("factor", ["A", "B"])
def test_an_adapter_that_changes_nothing_is_refused(factor: str) -> None:
    zeros = {
        name: tensor(np.zeros(shape))
        for name, (_, shape, _) in adapter_tensors().items()
        if name.endswith(f"lora_{factor}.weight")
    }
    error = refused(adapter_tensors() | zeros)
    assert error.field == "adapter_model.safetensors"
    assert "changes nothing" in error.rule and "all zeros" in error.rule
    del zeros[f"{Q0}.lora_{factor}.weight"]  # one module alone changes something
    assert check(adapter_tensors() | zeros).tensor_count == 8


def test_ranks_may_differ_by_module() -> None:
    tensors = adapter_tensors()
    tensors[f"{Q0}.lora_A.weight"] = tensor(np.ones((5, 16)))
    tensors[f"{Q0}.lora_B.weight"] = tensor(np.ones((16, 5)))
    summary = check(tensors, rank_pattern={"layers.0.self_attn.q_proj": 5})
    assert summary.rank == 5
    assert sorted(summary.ranks.values()) == [2, 2, 2, 5]
    assert refused(tensors).field == f"{Q0}.lora_A.weight"


@pytest.mark.parametrize(
    ("factor", "shape"), [("A", (2, 15)), ("A", (3, 16)), ("A", (16, 2)), ("B", (16, 3)), ("B", (8, 2)), ("B", (2, 16))]
)
def test_a_shape_that_does_not_fit_the_base_is_refused(factor: str, shape: tuple[int, int]) -> None:
    error = refused(adapter_tensors() | {f"{Q0}.lora_{factor}.weight": tensor(np.zeros(shape))})
    assert error.field == f"{Q0}.lora_{factor}.weight"
    assert error.rule.startswith("shape must be")


def test_one_and_three_dimensional_factors_are_refused() -> None:
    for shape in ((32,), (2, 16, 1)):
        assert "shape must be" in refused(adapter_tensors() | {f"{Q0}.lora_A.weight": tensor(np.zeros(shape))}).rule


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 31])
def test_one_value_that_is_not_finite_is_refused(dtype: str, value: float, position: int) -> None:
    values = np.zeros(32)
    values[position] = value
    tensors = adapter_tensors(dtype=dtype)
    tensors[f"{Q0}.lora_B.weight"] = tensor(values.reshape(16, 2), dtype)
    error = refused(tensors)
    assert error.field == f"{Q0}.lora_B.weight" and "finite" in error.rule


@pytest.mark.parametrize("value", [1e4, 3e38])
def test_a_huge_factor_is_refused(value: float) -> None:
    error = refused(adapter_tensors() | {f"{Q0}.lora_B.weight": tensor(np.full((16, 2), value))})
    assert error.field == f"{Q0}.lora_B.weight" and "norm" in error.rule


def test_a_huge_update_made_of_bounded_factors_or_of_alpha_is_refused() -> None:
    big = {f"{Q0}.lora_{f}.weight": tensor(np.full(s, 100.0)) for f, s in (("A", (2, 16)), ("B", (16, 2)))}
    assert refused(adapter_tensors() | big).field == "model.layers.0.self_attn.q_proj"
    large = adapter_tensors() | {f"{Q0}.lora_A.weight": tensor(np.full((2, 16), 10.0))}
    check(large)
    assert "scale times" in refused(large, lora_alpha=65_536, alpha_pattern={"v_proj": 1.0}).rule


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.q_proj.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.bias",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
        "base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.rotary.lora_A.weight",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "extra",
    ],
)
def test_a_tensor_that_is_not_a_factor_of_a_servable_module_is_refused(name: str) -> None:
    assert refused(adapter_tensors() | {name: tensor(np.zeros((2, 16)))}).field == name


@pytest.mark.parametrize("factor", ["A", "B"])
def test_a_missing_factor_is_refused(factor: str) -> None:
    tensors = adapter_tensors()
    del tensors[f"{Q0}.lora_{factor}.weight"]
    error = refused(tensors)
    assert error.field == f"{Q0}.lora_{factor}.weight" and "missing" in error.rule


def test_mixed_dtypes_are_refused() -> None:
    half = tensor(np.zeros((2, 16)), "F16")
    assert "one dtype" in refused(adapter_tensors() | {f"{Q0}.lora_A.weight": half}).rule


def upper_layer() -> Tensors:
    """The factors of two modules, in layer 1 alone."""
    tensors = adapter_tensors(targets=("self_attn.q_proj", "mlp.up_proj"))
    return {name: value for name, value in tensors.items() if ".layers.1." in name}


def test_an_adapter_of_some_modules_is_whole_where_its_settings_say_so() -> None:
    modules = ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"]
    named = ["q_proj", "up_proj"]
    for changes in (
        {"target_modules": "(a+)+$"},
        {"target_modules": None},
        {"target_modules": named, "layers_to_transform": 1},
        {"target_modules": named, "layers_to_transform": [1], "layers_pattern": "layers"},
        {"target_modules": named, "exclude_modules": ["layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"]},
        {"target_modules": named, "exclude_modules": ".*0.*"},
        {"target_modules": modules},
        {"target_modules": ["c_attn", "lm_head"], "layers_to_transform": [7]},
    ):
        assert list(check(upper_layer(), **changes).ranks) == modules, changes


@pytest.mark.parametrize(
    ("changes", "missing", "more"),
    [
        ({"target_modules": ["q_proj", "up_proj"]}, "layers.0.self_attn.q_proj", 1),
        ({"target_modules": ["self_attn.q_proj"]}, "layers.0.self_attn.q_proj", 0),
        ({"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [1]}, "layers.1.self_attn.k_proj", 0),
        ({"target_modules": ["q_proj", "up_proj"], "layers_to_transform": []}, "layers.0.self_attn.q_proj", 1),
        ({"target_modules": ["q_proj"], "exclude_modules": ["up_proj"]}, "layers.0.self_attn.q_proj", 0),
        ({"target_modules": "all-linear", "layers_to_transform": [1]}, "layers.1.self_attn.k_proj", 4),
        ({"target_modules": ["model.layers.0.mlp.up_proj"]}, "layers.0.mlp.up_proj", 0),
    ],
)
def test_a_module_that_the_settings_name_and_the_file_lacks_is_refused(
    changes: dict[str, Any], missing: str, more: int
) -> None:
    error = refused(upper_layer(), **changes)
    assert error.field == f"model.{missing}" and "target_modules" in error.rule
    assert (f"and {more} more" in error.rule) == (more > 0)


@pytest.mark.parametrize(("name", "path"), [("lm_head", "lm_head"), ("embed_tokens", "model.embed_tokens")])
def test_an_embedding_or_head_that_the_settings_name_and_the_file_lacks_is_refused(name: str, path: str) -> None:
    assert refused(target_modules=["q_proj", "v_proj", name]).field == path


@pytest.mark.parametrize(
    ("begins", "rule"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
        (gzip.compress(b"x" * 99, mtime=0), "gzip"),
        (b"PK\x03\x04" + bytes(99), "zip"),
        (b"\xef\xbb\xbf{}" + b" " * 99, "byte order mark"),
        (("{}" + " " * 99).encode("utf-16"), "UTF-16"),
    ],
)
def test_a_file_that_stands_in_anothers_place_is_named(begins: bytes, rule: str) -> None:
    parts = (config_bytes(), safetensors_bytes(adapter_tensors()))
    for place, name in enumerate(("adapter_config.json", "adapter_model.safetensors")):
        with pytest.raises(IntakeError) as caught:
            check_adapter((begins, parts[1]) if place == 0 else (parts[0], begins), BASE)
        assert caught.value.field == name and rule in caught.value.rule
    with pytest.raises(IntakeError, match=rule):
        parse_contract(begins)


@pytest.mark.parametrize("length", [0x8B1F, 0xFEFF])
def test_a_header_whose_length_begins_as_another_file_does_is_read(length: int) -> None:
    data = safetensors_bytes(adapter_tensors())
    size = int.from_bytes(data[:8], "little")
    padded = length.to_bytes(8, "little") + data[8 : 8 + size].ljust(length) + data[8 + size :]
    assert check_adapter((config_bytes(), padded), BASE).ranks


def test_modules_come_in_the_order_of_the_base_whatever_the_order_in_the_file() -> None:
    tensors = adapter_tensors()
    assert check(dict(reversed(tensors.items()))).ranks == check(tensors).ranks
    assert list(check(dict(reversed(tensors.items()))).ranks) == list(check(tensors).ranks)


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_more_patterns_than_the_base_has_modules_are_refused(key: str) -> None:
    modules = [f"model.layers.{layer}.{suffix}" for layer in range(BASE.num_layers) for suffix in BASE.shapes]
    check(**{key: dict.fromkeys(modules, 2)})
    error = refused(**{key: dict.fromkeys([*modules, "x"], 2)})
    assert error.field == f"adapter_config.json {key}" and "at most 14" in error.rule


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{Q0}.lora_magnitude_vector", "DoRA"),
        ("base_model.model.lm_head.weight", "whole saved module"),
        ("base_model.model.model.embed_tokens.base_layer.weight", "copy of the base's own"),
        ("model.layers.0.self_attn.q_proj.lora_a", "MLX"),
        ("model.layers.0.self_attn.q_proj.lora_b", "MLX"),
    ],
)
def test_tensors_of_other_formats_are_named_as_what_they_are(name: str, kind: str) -> None:
    assert kind in refused(adapter_tensors() | {name: tensor(np.zeros((2, 16)))}).rule


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "a.zip"])
def test_other_files_a_trainer_leaves_are_ignored(tmp_path: Path, name: str) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / name).write_bytes(pickle.dumps({"weights": 1}))
    (folder / "checkpoint-500").mkdir()
    assert check_adapter(folder, BASE) == check()


@pytest.mark.parametrize(
    ("name", "kind"), [("adapter_model.bin", "pickled"), ("adapters.safetensors", "MLX"), ("adapters.npz", "MLX")]
)
def test_a_folder_in_another_format_is_named_as_what_it_is(tmp_path: Path, name: str, kind: str) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").rename(folder / name)
    with pytest.raises(IntakeError, match=kind) as caught:
        check_adapter(folder, BASE)
    assert caught.value.field == name


def test_a_snapshot_in_a_hub_cache_is_links_and_passes(tmp_path: Path) -> None:
    blobs = write_adapter(tmp_path / "blobs")
    snapshot = tmp_path / "snapshots" / "1a2b"
    snapshot.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    (tmp_path / "current").symlink_to(snapshot)
    assert blobs.is_dir()
    assert check_adapter(tmp_path / "current", BASE) == check()


@pytest.mark.parametrize("target", ["none", "/dev/zero", "."])
def test_a_link_to_anything_but_a_file_is_refused(tmp_path: Path, target: str) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").symlink_to(target)
    with pytest.raises(IntakeError) as caught:
        check_adapter(folder, BASE)
    assert caught.value.field == "adapter_model.safetensors"


def test_a_plain_file_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    for source in (folder / "adapter_config.json", tmp_path / "none"):
        with pytest.raises(IntakeError, match="must be a folder"):
            check_adapter(source, BASE)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_missing_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / name).unlink()
    with pytest.raises(IntakeError, match=f"{name}: file is missing"):
        check_adapter(folder, BASE)


def test_a_pickle_under_a_safetensors_name_is_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").write_bytes(pickle.dumps({"weights": list(range(100))}))
    with pytest.raises(IntakeError, match="not a safetensors file"):
        check_adapter(folder, BASE)


def test_oversize_files_are_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    size = (folder / "adapter_model.safetensors").stat().st_size
    assert check_adapter(folder, BASE, max_bytes=size)
    with pytest.raises(IntakeError, match=r"adapter_model\.safetensors: must be 1 to"):
        check_adapter(folder, BASE, max_bytes=size - 1)
    with pytest.raises(IntakeError, match="at most"):
        check_adapter((config_bytes(), safetensors_bytes(adapter_tensors())), BASE, max_bytes=size - 1)
    (folder / "adapter_config.json").write_bytes(config_bytes() + b" " * (1 << 20))
    with pytest.raises(IntakeError, match=r"adapter_config\.json: must be at most"):
        check_adapter(folder, BASE)


def test_a_sparse_giant_is_refused_without_being_read(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(9 << 30)
    with pytest.raises(IntakeError, match="must be 1 to"):
        check_adapter(folder, BASE)


def test_refusals_are_printable_and_survive_pickling() -> None:
    error = IntakeError("a\x1b[31m\n\u202e" + "x" * 1000, "rule")
    assert str(error).isprintable() and len(str(error)) < 220
    again = pickle.loads(pickle.dumps(error))
    assert (again.field, again.rule, str(again)) == (error.field, error.rule, str(error))


def test_llama_shapes_come_from_the_config() -> None:
    assert BASE.shapes["self_attn.k_proj"] == (8, 16)
    wide = BaseSpec.from_hf_config(HF_CONFIG | {"head_dim": 8}, BASE_FINGERPRINT)
    assert wide.shapes["self_attn.q_proj"] == (32, 16) and wide.shapes["self_attn.o_proj"] == (16, 32)
    assert wide.shapes["mlp.down_proj"] == (16, 24) and wide.num_layers == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "16"}, "hidden_size"),
    ],
)
def test_other_bases_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(IntakeError, match=field):
        BaseSpec.from_hf_config(HF_CONFIG | change, BASE_FINGERPRINT)
