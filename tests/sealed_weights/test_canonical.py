"""The canonical encoding is injective."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealed_weights.canonical import encode, encode_context

FIELDS = st.lists(st.binary(max_size=6), max_size=4).map(tuple)


@given(st.text(max_size=4), FIELDS, st.text(max_size=4), FIELDS)
def test_different_tuples_never_share_an_encoding(
    first_domain: str, first: tuple[bytes, ...], second_domain: str, second: tuple[bytes, ...]
) -> None:
    same = (first_domain, first) == (second_domain, second)
    assert (encode(first_domain, *first) == encode(second_domain, *second)) is same


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3)), st.dictionaries(st.text(max_size=3), st.text()))
def test_different_contexts_never_share_an_encoding(first: dict[str, str], second: dict[str, str]) -> None:
    assert (encode_context("d", first) == encode_context("d", second)) is (first == second)


def test_the_layout_is_lengths_and_bytes() -> None:
    encoded = encode("d", "é", 1, UUID(int=2), b"")
    assert encoded.hex() == (
        "00000001640000000400000002c3a9000000080000000000000001000000100000000000000000000000000000000200000000"
    )


@pytest.mark.parametrize("value", [-1, 2**64])
def test_integers_outside_u64_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        encode("d", value)


@pytest.mark.parametrize("value", [True, None, 1.5])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        encode("d", value)  # type: ignore[arg-type]
