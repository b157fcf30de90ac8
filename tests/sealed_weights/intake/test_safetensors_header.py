"""The safetensors header parser refuses what the reference implementation lets through."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealed_weights import IntakeError, TensorInfo, parse_safetensors_header
from tests.sealed_weights.factories import adapter_tensors, file_bytes, safetensors_bytes, tensor

GOOD = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def refused(data: bytes, rule: str) -> IntakeError:
    with pytest.raises(IntakeError, match=rule) as caught:
        parse_safetensors_header(data)
    return caught.value


def entry(**changes: Any) -> bytes:
    return file_bytes(json.dumps({"a": GOOD | changes}), bytes(4))


def test_a_good_file_parses_to_offsets_into_the_whole_file() -> None:
    tensors = adapter_tensors()
    data = safetensors_bytes(tensors, metadata={"format": "pt"})
    parsed = parse_safetensors_header(data)
    assert list(parsed) == list(tensors)
    for name, info in parsed.items():
        dtype, shape, stored = tensors[name]
        assert (info.dtype, list(info.shape), data[info.start : info.end]) == (dtype, shape, stored)


def test_a_file_of_the_reference_library_parses() -> None:
    safetensors = importlib.import_module("safetensors.numpy")
    import numpy as np

    data = safetensors.save({"b.x": np.ones((2, 3), np.float32), "a": np.zeros(5, np.float16)}, {"format": "pt"})
    parsed = parse_safetensors_header(data)
    assert {name: (info.dtype, info.shape) for name, info in parsed.items()} == {
        "b.x": ("F32", (2, 3)),
        "a": ("F16", (5,)),
    }
    assert data[parsed["b.x"].start : parsed["b.x"].end] == np.ones((2, 3), np.float32).tobytes()


def test_any_buffer_type_works() -> None:
    data = entry()
    expected = {"a": TensorInfo("F32", (1,), len(data) - 4, len(data))}
    assert parse_safetensors_header(bytearray(data)) == parse_safetensors_header(memoryview(data)) == expected


def test_a_repeated_tensor_name_is_refused() -> None:
    one = json.dumps(GOOD)
    refused(file_bytes(f'{{"a": {one}, "a": {one}}}', bytes(4)), "repeat the key 'a'")


def test_a_repeated_key_inside_a_tensor_or_metadata_is_refused() -> None:
    refused(file_bytes('{"a": {"dtype": "F32", "dtype": "F16", "shape": [1], "data_offsets": [0, 4]}}'), "repeat")
    refused(file_bytes('{"__metadata__": {"a": "1", "a": "2"}}'), "repeat")


def test_a_header_over_one_mebibyte_is_refused() -> None:
    text = json.dumps({"a": GOOD})
    padded = text + " " * ((1 << 20) - len(text))
    assert parse_safetensors_header(file_bytes(padded, bytes(4)))
    refused(file_bytes(padded + " ", bytes(4)), "at most 1048576 bytes")
    refused((2**64 - 1).to_bytes(8, "little") + b"{}", "at most 1048576 bytes")


def test_more_than_twenty_thousand_tensors_are_refused() -> None:
    def many(count: int) -> bytes:
        entries = ",".join(
            f'"{i}":{{"dtype":"F16","shape":[1],"data_offsets":[{2 * i},{2 * i + 2}]}}' for i in range(count)
        )
        return file_bytes("{" + entries + "}", bytes(2 * count))

    # 1 MiB holds about 17,000 of the shortest entries: the header limit is met first, the count stands behind.
    refused(many(20_001), "at most 1048576 bytes")
    assert len(parse_safetensors_header(many(15_000))) == 15_000


def test_the_tensor_limit_itself_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealed_weights.intake.safetensors_header.MAX_TENSORS", 7)
    assert parse_safetensors_header(safetensors_bytes(dict(list(adapter_tensors().items())[:7])))
    refused(safetensors_bytes(adapter_tensors()), "1 to 7 tensors")


def test_no_tensors_at_all_are_refused() -> None:
    refused(file_bytes("{}"), "1 to 20000 tensors")


@pytest.mark.parametrize("shape", [[0], [0, 4], [4, 0], [], [-1], [1.0], ["1"], [True], "1", None, [1] * 9, [2**60]])
def test_zero_missing_and_malformed_dimensions_are_refused(shape: Any) -> None:
    assert refused(entry(shape=shape), "positive integers").field == "a"


@pytest.mark.parametrize(
    "name",
    ["../a", "/etc/passwd", "a/b", "a..b", ".a", "a.", "a b", "a\n", "", "é", "a\u0000", "__proto__-x", "a" * 257],
)
def test_names_that_are_not_dotted_words_are_refused(name: str) -> None:
    refused(file_bytes(json.dumps({name: GOOD}), bytes(4)), "dotted words")


@pytest.mark.parametrize("dtype", ["F64", "I8", "U8", "BOOL", "F8_E4M3", "f32", "", None, 1, ["F32"]])
def test_dtypes_outside_the_list_are_refused(dtype: Any) -> None:
    refused(entry(dtype=dtype), "dtype must be one of F32, F16, BF16")


@pytest.mark.parametrize("offsets", [[0], [0, 4, 4], [-4, 0], [0.0, 4.0], "04", None, [0, 2**70], [False, 4]])
def test_malformed_offsets_are_refused(offsets: Any) -> None:
    refused(entry(data_offsets=offsets), "data_offsets must be two natural numbers")


@pytest.mark.parametrize("offsets", [[0, 3], [0, 5], [4, 0], [4, 4]])
def test_offsets_that_do_not_span_the_shape_are_refused(offsets: list[int]) -> None:
    refused(entry(data_offsets=offsets), "must span exactly")


@pytest.mark.parametrize(
    ("second", "size", "rule"),
    [
        ([0, 4], 8, "must not overlap"),
        ([2, 6], 8, "must not overlap"),
        ([5, 9], 9, "without a gap"),
        ([4, 8], 9, "end exactly where the file ends"),
        ([4, 8], 7, "end exactly where the file ends"),
    ],
)
def test_overlaps_gaps_and_trailing_bytes_are_refused(second: list[int], size: int, rule: str) -> None:
    header = json.dumps({"a": GOOD, "b": GOOD | {"data_offsets": second}})
    refused(file_bytes(header, bytes(size)), rule)


def test_a_gap_before_the_first_tensor_is_refused() -> None:
    refused(file_bytes(json.dumps({"a": GOOD | {"data_offsets": [1, 5]}}), bytes(5)), "without a gap")


@pytest.mark.parametrize("change", [{"extra": 1}, {"shape": ...}])
def test_a_tensor_has_exactly_three_keys(change: dict[str, Any]) -> None:
    value = {key: item for key, item in (GOOD | change).items() if item is not ...}
    refused(file_bytes(json.dumps({"a": value}), bytes(4)), "exactly dtype, shape and data_offsets")


@pytest.mark.parametrize("metadata", [1, [], {"a": 1}, {"a": {"b": "c"}}, None])
def test_metadata_must_map_strings_to_strings(metadata: Any) -> None:
    header = json.dumps({"__metadata__": metadata, "a": GOOD})
    refused(file_bytes(header, bytes(4)), "map strings to strings")


def test_metadata_over_64_kibibytes_is_refused() -> None:
    tensors = {"a": tensor([1.0])}
    assert parse_safetensors_header(safetensors_bytes(tensors, {"k": "v" * 65_535}))
    refused(safetensors_bytes(tensors, {"k": "v" * 65_536}), "at most 65536 characters")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        bytes(8),
        (100).to_bytes(8, "little") + b"{}",
        b"PK\x03\x04" + bytes(100),
        b"\x80\x04\x95" + bytes(100),
        file_bytes("[]"),
        file_bytes("null"),
        file_bytes('{"a": [1]}'),
        file_bytes('{"a": ' + "[" * 50_000),
        file_bytes('{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 4]}}', bytes(4)),
        file_bytes('{"a": {"dtype": "F32", "shape": [' + "9" * 5000 + '], "data_offsets": [0, 4]}}', bytes(4)),
        (3).to_bytes(8, "little") + b"\xff\xfe\xfd",
    ],
)
def test_data_that_is_not_safetensors_is_refused(data: bytes) -> None:
    with pytest.raises(IntakeError):
        parse_safetensors_header(data)


@given(st.binary(max_size=200), st.integers(0, 60))
def test_no_bytes_raise_anything_but_an_intake_error(noise: bytes, position: int) -> None:
    good = bytearray(entry())
    good[position : position + len(noise)] = noise
    for data in (noise, bytes(good), file_bytes("{") + noise):
        try:
            parse_safetensors_header(data)
        except IntakeError as error:
            assert error.field and error.rule
