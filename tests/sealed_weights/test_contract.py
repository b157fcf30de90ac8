"""The contract of a version: what is read, what is refused and by which rule, and how it is sealed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from examples.score import read_heldout
from sealed_weights import CommitmentError, FormatError, IntakeError, parse_contract, read_contract
from sealed_weights.payload import MAX_CONTRACT
from tests.sealed_weights.factories import open_it, seal, write_adapter

LEAST: dict[str, Any] = {"contract": 1, "instructions": "Sort it.", "max_tokens": 24}
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"enum": ["x", "y"]}}, "required": ["b", "a"]}


def written(**changes: Any) -> bytes:
    return json.dumps({name: value for name, value in (LEAST | changes).items() if value is not ...}).encode()


def test_what_is_left_out_has_a_default() -> None:
    contract = parse_contract(written())
    assert (contract.messages, contract.output, contract.system, contract.logprobs) == ("chat", None, "replace", "none")
    assert contract.sampling == {} and contract.examples == () and contract.max_tokens == 24


def test_its_sealed_form_is_one_and_keeps_the_order_of_the_answers_properties() -> None:
    contract = parse_contract(written(output={"schema": SCHEMA}, sampling={"top_p": 0.9, "temperature": 0}))
    sealed = contract.to_bytes()
    assert parse_contract(sealed).to_bytes() == sealed == parse_contract(b" \n" + sealed + b"\n").to_bytes()
    assert list(json.loads(sealed)["output"]["schema"]["properties"]) == ["b", "a"]
    assert "Sort it." not in repr(contract)


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"contract": 2}, "contract.json contract", "must be 1"),
        ({"contract": True}, "contract.json contract", "must be 1"),
        ({"instructions": ...}, "contract.json instructions", "is missing"),
        ({"max_tokens": ...}, "contract.json max_tokens", "is missing"),
        ({"instruction": "x"}, "contract.json instruction", "is unknown"),
        ({"instructions": 5}, "contract.json instructions", "must be text"),
        ({"instructions": "x" * 32_001}, "contract.json instructions", "0 to 32000 characters"),
        ({"instructions": "\ud800"}, "contract.json instructions", "without lone surrogates"),
        ({"max_tokens": 0}, "contract.json max_tokens", "whole number from 1"),
        ({"max_tokens": 2.0}, "contract.json max_tokens", "whole number"),
        ({"messages": "two"}, "contract.json messages", "chat or single"),
        ({"system": ["replace"]}, "contract.json system", "replace or append or refuse"),
        ({"logprobs": 5}, "contract.json logprobs", "none or confidence or open"),
        ({"output": "json"}, "contract.json output", "must be"),
        ({"output": {"schema": True}}, "contract.json output", "must be"),
        ({"output": {"schema": {}, "strict": True}}, "contract.json output", "must be"),
        ({"output": {"schema": {"maximum": 1e999}}}, "contract.json", "must not contain Infinity"),
        ({"output": {"schema": {"enum": ["x" * 20_000]}}}, "contract.json output.schema", "at most 16384 characters"),
        ({"sampling": {"heat": 1}}, "contract.json sampling.heat", "is unknown"),
        ({"sampling": {"temperature": 3}}, "contract.json sampling.temperature", "from 0 to 2"),
        ({"sampling": {"top_k": 1.5}}, "contract.json sampling.top_k", "must be a number"),
        ({"examples": [{"message": "x"}]}, "contract.json examples[0]", "exactly the fields"),
        (
            {"output": {"schema": SCHEMA}, "examples": [{"message": "x", "answer": "{"}]},
            "contract.json examples[0].answer",
            "must be JSON",
        ),
        ({"examples": [{"message": "x", "answer": ""}]}, "contract.json examples[0].answer", "1 to 8000"),
    ],
)
def test_a_wrong_contract_is_refused_by_field_and_rule(changes: dict[str, Any], field: str, rule: str) -> None:
    with pytest.raises(IntakeError) as refusal:
        parse_contract(written(**changes))
    assert refusal.value.field == field and rule in refusal.value.rule


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"[]", "must be a JSON object"),
        (b"{", "valid JSON"),
        (b'{"contract": 1, "contract": 1}', "repeat the key"),
        (b"\xff", "UTF-8"),
        (b" " * (MAX_CONTRACT + 1), "at most"),
        (b'{"contract": 1e999, "instructions": "x", "max_tokens": 1}', "must be 1"),
    ],
)
def test_text_that_is_no_contract_is_refused(data: bytes, rule: str) -> None:
    with pytest.raises(IntakeError, match=rule):
        parse_contract(data)


def test_a_deep_schema_is_refused_and_not_followed_down() -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"not": schema}
    with pytest.raises(IntakeError, match="nested at most"):
        parse_contract(written(output={"schema": schema}))


def test_a_package_with_another_contract_has_another_digest_and_shows_no_word_of_it(tmp_path: Path) -> None:
    digests = set()
    for index, text in enumerate((None, "Sort it.", "Sort it!")):
        folder = write_adapter(tmp_path / f"adapter{index}")
        if text is not None:
            (folder / "contract.json").write_bytes(written(instructions=text))
        package = seal(folder, tmp_path / f"package{index}")
        digests.add(package.digest)
        assert b"Sort it" not in package.path.read_bytes()
        with open_it(package.path, expected_digest=package.digest) as opened:
            sealed = opened.contract
        assert sealed is None if text is None else sealed and parse_contract(sealed).instructions == text
    assert len(digests) == 3


def test_a_package_cannot_pass_for_one_of_the_other_suite(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    (folder / "contract.json").write_bytes(written())
    package = seal(folder, tmp_path / "package")
    data = bytearray(package.path.read_bytes())
    data[11] = 1
    package.path.write_bytes(data)
    with pytest.raises(CommitmentError):
        open_it(package.path)


def test_a_contract_that_is_wrong_or_no_file_is_not_sealed(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    assert read_contract(folder) is None
    (folder / "contract.json").write_bytes(written(max_tokens=0))
    with pytest.raises(FormatError, match="max_tokens"):
        seal(folder, tmp_path / "package")
    (folder / "contract.json").unlink()
    os.mkfifo(folder / "contract.json")
    with pytest.raises(FormatError, match="regular file"):
        seal(folder, tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_the_example_of_the_page_is_a_contract() -> None:
    page = (Path(__file__).parents[2] / "docs" / "contract.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", page, re.S)
    contract = parse_contract(example.encode())
    assert contract.messages == "single" and contract.output and len(contract.examples) == 1


@pytest.mark.parametrize("task", ["finance", "health", "telecom"])
def test_the_samples_contracts_hold_what_their_adapters_were_trained_with(task: str) -> None:
    contract = read_contract(Path(__file__).parents[2] / "examples" / "adapters" / task)
    assert contract is not None and contract.output is not None
    rows = read_heldout(task)
    assert {row["messages"][0]["content"] for row in rows} == {contract.instructions}
    for row in rows:
        assert contract.output["required"] == list(row["expected"])
        assert all(value in contract.output["properties"][name]["enum"] for name, value in row["expected"].items())
