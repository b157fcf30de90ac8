"""adapter_config.json: what PEFT writes by default passes, anything that changes the maths is refused by name."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from sealed_weights import AdapterConfig, IntakeError, parse_adapter_config
from sealed_weights.intake.adapter_config import MAX_PATTERNS
from tests.sealed_weights.factories import PEFT_CONFIG, config_bytes


def parse(**changes: Any) -> AdapterConfig:
    return parse_adapter_config(config_bytes(changes))


def refused(**changes: Any) -> IntakeError:
    with pytest.raises(IntakeError) as caught:
        parse(**changes)
    return caught.value


def test_a_file_written_by_peft_passes() -> None:
    config = parse()
    assert (config.r, config.lora_alpha, config.use_rslora) == (2, 4, False)
    assert config.rank_pattern == {} and config.alpha_pattern == {}


def test_peft_itself_writes_only_keys_that_pass(tmp_path: Path) -> None:
    peft = importlib.import_module("peft")
    written = peft.LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["q_proj"],
        task_type="CAUSAL_LM",
        use_rslora=True,
        lora_dropout=0.1,
        rank_pattern={"layers.0.self_attn.q_proj": 4},
        alpha_pattern={"layers.0.self_attn.q_proj": 8},
        layers_to_transform=[0, 1],
        init_lora_weights="gaussian",
    )
    written.save_pretrained(tmp_path)
    config = parse_adapter_config((tmp_path / "adapter_config.json").read_bytes())
    assert config.r == 8 and config.use_rslora


def test_a_minimal_file_of_an_old_peft_passes() -> None:
    old = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "enable_lora": None}
    assert parse_adapter_config(json.dumps(old).encode()).r == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "some"}, "bias"),
        ({"lora_bias": True, "use_dora": True}, "lora_bias"),
        ({"use_dora": "yes"}, "use_dora"),
        ({"megatron_config": {"a": 1}}, "megatron_config"),
        ({"megatron_core": "os.path"}, "megatron_core"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"use_qalora": True}, "use_qalora"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": list(range(65))}, "trainable_token_indices"),
        ({"trainable_token_indices": [1, 1]}, "trainable_token_indices"),
        ({"trainable_token_indices": [-1]}, "trainable_token_indices"),
        ({"trainable_token_indices": {"q_proj": [1]}}, "trainable_token_indices"),
        ({"target_parameters": ["x"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"kasa_config": {"beta": 1}}, "kasa_config"),
        ({"velora_config": {"a": 1}}, "velora_config"),
        ({"arrow_config": {"a": 1}}, "arrow_config"),
        ({"use_bdlora": {"a": 1}}, "use_bdlora"),
        ({"monteclora_config": {"a": 1}}, "monteclora_config"),
        ({"a_key_from_the_future": True}, "a_key_from_the_future"),
        ({"a_key_from_the_future": 0}, "a_key_from_the_future"),
        ({"a_key_from_the_future": "on"}, "a_key_from_the_future"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"task_type": "SEQ_CLS"}, "task_type"),
        ({"use_rslora": 1}, "use_rslora"),
    ],
)
def test_what_would_change_the_maths_is_refused(change: dict[str, Any], field: str) -> None:
    assert refused(**change).field == f"adapter_config.json {field}"


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "unheard_of", 1, {}])
def test_initialisations_that_change_the_base_are_refused(init: Any) -> None:
    assert refused(init_lora_weights=init).field.endswith("init_lora_weights")


@pytest.mark.parametrize("init", [True, False, "gaussian", "eva", "orthogonal", "mica"])
def test_initialisations_that_keep_the_base_pass(init: Any) -> None:
    assert parse(init_lora_weights=init).r == 2


def test_a_key_from_a_later_peft_passes_at_its_off_default() -> None:
    off: tuple[Any, ...] = (None, False, {}, [])
    for value in off:
        assert parse(a_key_from_the_future=value).r == 2


@pytest.mark.parametrize(
    "change",
    [
        {"auto_mapping": {"base_model_class": "X", "parent_library": "os", "unsloth_fixed": True}},
        {"corda_config": {"corda_method": "kpm"}},
        {"loftq_config": {"loftq_bits": 4}},
    ],
)
def test_fields_only_the_trainer_needs_are_neither_read_nor_run(change: dict[str, Any]) -> None:
    assert parse(**change) == parse()


@pytest.mark.parametrize(
    "change",
    [
        {"target_modules": "(a+)+$"},
        {"target_modules": "all-linear", "exclude_modules": ".*vision.*"},
        {"target_modules": ["q_proj"], "exclude_modules": "(a+)+$"},
        {"target_modules": None},
        {"target_modules": ["../q"] * 10_000},
        {"target_modules": ["q_proj"], "layers_to_transform": [-1]},
        {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "h"},
    ],
)
def test_patterns_are_never_run_and_call_for_nothing(change: dict[str, Any]) -> None:
    config = parse(**change)
    assert not any(config.calls_for(f"model.layers.{layer}.self_attn.q_proj", layer) for layer in range(2))


@pytest.mark.parametrize(
    "change",
    [
        {"target_modules": 7},
        {"target_modules": [["q_proj"]]},
        {"exclude_modules": {"q_proj": True}},
        {"layers_to_transform": "0"},
        {"layers_to_transform": [True]},
        {"layers_pattern": 7},
    ],
)
def test_what_says_which_modules_have_factors_is_names_and_numbers(change: dict[str, Any]) -> None:
    with pytest.raises(IntakeError) as refused:
        parse(**change)
    assert refused.value.field == f"adapter_config.json {next(iter(change))}"


def test_the_time_to_find_a_scale_does_not_depend_on_the_number_of_patterns() -> None:
    patterns = {f"x{index}": 8 for index in range(MAX_PATTERNS - 1)} | {"self_attn.q_proj": 4}
    config = parse(rank_pattern=patterns, alpha_pattern=patterns)
    looked_up = 0

    class Counting(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            nonlocal looked_up
            looked_up += 1
            return super().__contains__(key)

        def __iter__(self) -> Any:
            raise AssertionError("all patterns are walked through")

    config.__dict__["_ranked"] = Counting(config._ranked)
    assert config.rank_of("model.layers.0.self_attn.q_proj") == 4
    assert looked_up <= 6


def test_too_many_patterns_are_refused() -> None:
    patterns = {f"x{index}": 8 for index in range(MAX_PATTERNS + 1)}
    assert "rank_pattern" in refused(rank_pattern=patterns).field


@pytest.mark.parametrize("rank", [0, -1, 257, 8.0, "8", True, None, 10**400])
def test_the_rank_must_be_an_integer_from_1_to_256(rank: Any) -> None:
    assert refused(r=rank).field.endswith(" r")
    assert "rank_pattern[q_proj]" in refused(rank_pattern={"q_proj": rank}).field


@pytest.mark.parametrize("alpha", [0, -1, 65_537, 1e300, "8", True, None])
def test_alpha_must_be_a_bounded_positive_number(alpha: Any) -> None:
    assert refused(lora_alpha=alpha).field.endswith(" lora_alpha")
    assert "alpha_pattern[q_proj]" in refused(alpha_pattern={"q_proj": alpha}).field


@pytest.mark.parametrize("pattern", [{".*": 4}, {"(a+)+$": 4}, {"a|b": 4}, {"a$": 4}, [["q_proj", 4]], "q_proj"])
def test_patterns_must_be_literal_names(pattern: Any) -> None:
    assert "rank_pattern" in refused(rank_pattern=pattern).field
    assert "alpha_pattern" in refused(alpha_pattern=pattern).field


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b'{"r": 2, "r": 4}', "repeat the key 'r'"),
        (b'{"a": {"x": 1, "x": 2}}', "repeat the key 'x'"),
        (b'{"r": NaN}', "NaN"),
        (b'{"r": Infinity}', "Infinity"),
        (b"[]", "object"),
        (b"", "valid JSON"),
        (b"{", "valid JSON"),
        (b"\xff{}", "UTF-8"),
        (b'{"r":' + b"[" * 100_000, "nested"),
        (b'{"r":' + b"9" * 5000 + b"}", "valid JSON"),
        (b" " * (1 << 20) + b"{}", "at most"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(IntakeError, match=rule):
        parse_adapter_config(data)


def test_patterns_and_scaling_follow_peft() -> None:
    config = parse(
        r=8,
        lora_alpha=16,
        rank_pattern={"layers.0.self_attn.q_proj": 4, "q_proj": 2, "^model.layers.1.self_attn.v_proj": 16},
        alpha_pattern={"v_proj": 32},
    )
    ranks = [
        config.rank_of(f"model.layers.{layer}.self_attn.{name}") for layer in (0, 1) for name in ("q_proj", "v_proj")
    ]
    assert ranks == [4, 8, 2, 16]
    assert config.scale_of("model.layers.0.self_attn.v_proj") == 32 / 8
    rslora = parse(r=8, lora_alpha=16, use_rslora=True)
    assert rslora.scale_of("model.layers.0.self_attn.v_proj") == 16 / math.sqrt(8)


def test_patterns_match_the_same_modules_as_peft() -> None:
    other = importlib.import_module("peft.utils.other")
    patterns = [
        "layers.0.self_attn.q_proj",
        "q_proj",
        "^model.layers.1.mlp.up_proj",
        "proj",
        "model.layers.0.mlp.up_proj",
    ]
    modules = [
        f"model.layers.{layer}.{suffix}" for layer in (0, 1, 10) for suffix in ("self_attn.q_proj", "mlp.up_proj")
    ]
    for order in (patterns, patterns[::-1]):
        values = {pattern: index + 1 for index, pattern in enumerate(order)}
        config = parse(rank_pattern=values, r=100)
        for module in modules:
            assert config.rank_of(module) == values.get(other.get_pattern_key(order, module), 100), module


def test_harmless_keys_are_not_read() -> None:
    assert parse(base_model_name_or_path="/etc/passwd", peft_version="9", inference_mode=False) == parse()
    assert set(PEFT_CONFIG) >= {"peft_version", "qalora_group_size"}
