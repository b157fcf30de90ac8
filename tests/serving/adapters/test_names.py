"""Names of adapters and blends, and the identity of a blend."""

from __future__ import annotations

import pytest

from serving.adapters.names import parse_model_name
from serving.core import AdapterRef, blend_identity

A, B = "aa" * 32, "bb" * 32


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("finance", (("finance", 1.0),)),
        ("a:0.7+b:0.3", (("a", 0.7), ("b", 0.3))),
        ("a+b", (("a", 1.0), ("b", 1.0))),
        ("a-1.0_x:-2", (("a-1.0_x", -2.0),)),
    ],
)
def test_names_that_stand_for_something(name: str, parts: object) -> None:
    assert parse_model_name(name) == parts


@pytest.mark.parametrize(
    "name",
    ["", "+", "a+", "a:", "a:x", "a:1e3", "a:nan", "a:inf", "a:0.5:2", "../a", "a b", "a:٣", "a:1+ b", "x" * 2000],
)
def test_names_that_stand_for_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"name|weight"):
        parse_model_name(name)


def test_a_blend_is_the_same_in_any_order_and_another_with_other_weights() -> None:
    one = AdapterRef.blend([(A, 0.7), (B, 0.3)])
    assert one == AdapterRef.blend([(B, 0.3), (A, 0.7)])
    others = [[(A, 0.3), (B, 0.7)], [(A, 0.7)], [(A, 0.7), (B, 0.3000001)], [(A, 0.7), (B, -0.3)]]
    assert len({one.digest, A, B, *(AdapterRef.blend(parts).digest for parts in others)}) == 7
    assert one.digest is not None and len(one.digest) == 64 and one.parts == ((A, 0.7), (B, 0.3))


def test_one_part_of_weight_one_is_the_adapter_itself() -> None:
    assert AdapterRef.blend([(A, 1.0)]) == AdapterRef(A)


def test_identities_are_length_prefixed() -> None:
    assert blend_identity([("ab", 1.0), ("c", 1.0)]) != blend_identity([("a", 1.0), ("bc", 1.0)])


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [(A, 0.0)],
        [(A, float("nan"))],
        [(A, float("inf"))],
        [(A, 17.0)],
        [(A, 0.5), (A, 0.5)],
        [(f"{i:064x}", 0.1) for i in range(9)],
    ],
)
def test_blends_that_make_no_sense_are_refused(parts: list[tuple[str, float]]) -> None:
    with pytest.raises(ValueError, match="blend"):
        AdapterRef.blend(parts)
