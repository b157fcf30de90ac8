"""PEFT's answers beside an adapter: read strictly, and only beside the files that gave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sealed_weights import (
    FormatError,
    IntakeError,
    Reference,
    ReferenceAnswer,
    parse_reference,
    read_reference,
    source_digest,
)
from sealed_weights.reference import MAX_ANSWERS, MAX_PROMPT, MAX_TOKENS
from tests.sealed_weights.factories import open_it, seal, write_adapter

GOOD: dict[str, Any] = {
    "reference": 1,
    "of": "ab" * 32,
    "dtype": "bfloat16",
    "answers": [{"prompt": [1, 2], "tokens": [3]}],
}
ANSWER = GOOD["answers"][0]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reference": 2}, "reference"),
        ({"reference": True}, "reference"),
        ({"of": "AB" * 32}, "of"),
        ({"dtype": "int4"}, "dtype"),
        ({"answers": []}, "answers"),
        ({"answers": [ANSWER] * (MAX_ANSWERS + 1)}, "answers"),
        ({"answers": [{"prompt": [1]}]}, "answers[0]"),
        ({"answers": [ANSWER | {"text": "yes"}]}, "answers[0]"),
        ({"answers": [ANSWER | {"prompt": [1] * (MAX_PROMPT + 1)}]}, "answers[0].prompt"),
        ({"answers": [ANSWER | {"tokens": [1] * (MAX_TOKENS + 1)}]}, "answers[0].tokens"),
        ({"answers": [ANSWER | {"tokens": [True]}]}, "answers[0].tokens"),
        ({"answers": [ANSWER | {"tokens": [-1]}]}, "answers[0].tokens"),
        ({"more": 1}, ""),
    ],
)
def test_anything_but_a_plain_reference_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    assert len(parse_reference(json.dumps(GOOD).encode()).answers) == 1
    with pytest.raises(IntakeError) as caught:
        parse_reference(json.dumps(GOOD | change).encode())
    assert caught.value.field == f"reference.json {field}".strip()


def test_a_reference_is_sealed_with_the_adapter_that_it_is_of_and_with_no_other(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    assert read_reference(folder) is None
    mine = Reference(source_digest(folder), "float32", (ReferenceAnswer((1, 2), (3,)),))
    (folder / "reference.json").write_bytes(mine.to_bytes())
    with open_it(seal(folder, tmp_path / "a.sealed").path) as opened:
        assert opened.reference == mine.to_bytes() and opened.contract is None
    (folder / "contract.json").write_text('{"contract": 1, "instructions": "Other words.", "max_tokens": 8}')
    with pytest.raises(IntakeError, match="of another adapter or contract"):
        read_reference(folder)
    with pytest.raises(FormatError, match="of another adapter or contract"):
        seal(folder, tmp_path / "b.sealed")
    assert not (tmp_path / "b.sealed").exists()
