"""Whether a contract can be kept here, found out before its version is for sale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sealed_weights import IntakeError, parse_contract
from serving.adapters.contracts import ContractShelf
from serving.constraints import GrammarCompiler
from serving.http.contracts import ContractDesk
from serving.platform.contract_check import ContractCheck
from serving.tokenization.tokenizer import Tokenizer
from tests.serving.tiny import Tiny

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"]}
CONTEXT = 200  # tokens; the tiny tokenizer has one for each byte
GOOD: dict[str, Any] = {
    "contract": 1,
    "instructions": "Say yes or no.",
    "max_tokens": 20,
    "output": {"schema": SCHEMA | {"additionalProperties": False}},
    "examples": [{"message": "Is it?", "answer": '{"a":"yes"}'}],
}


class NoSource:
    contracts = ContractShelf()

    def contract(self, digest: str) -> None:
        raise AssertionError


@pytest.fixture
def check(tiny: Tiny) -> Iterator[ContractCheck]:
    tokenizer = Tokenizer.from_dir(tiny.model)
    grammars = GrammarCompiler(tokenizer.backend.to_str, tokenizer.vocab_size, tokenizer.eos_token_ids)
    yield ContractCheck(ContractDesk(NoSource(), tokenizer), tokenizer, grammars, CONTEXT)
    grammars.close()


async def test_a_good_contract_shows_its_public_part_and_no_word_of_the_rest(check: ContractCheck) -> None:
    public = await check.check(parse_contract(json.dumps(GOOD).encode()))
    # <|im_start|>system LF, the text, <|im_end|> LF, <|im_start|>user LF
    assert public.instruction_tokens == 1 + len("system\nSay yes or no.") + 1 + 1 + 1 + len("user\n")
    assert (public.max_tokens, public.messages, public.system, public.logprobs) == (20, "chat", "replace", "none")
    assert public.output_schema == GOOD["output"]["schema"]
    assert "Say yes" not in repr(public)


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"instructions": "x" * 150}, "instructions", "must be at most"),
        ({"max_tokens": 190}, "instructions", "into the context of 200"),
        ({"output": {"schema": {"type": "nonsense"}}}, "output.schema", "cannot be kept by the grammar"),
        ({"output": {"schema": {"enum": []}}, "examples": []}, "output.schema", "cannot be kept"),
        ({"examples": [{"message": "x", "answer": '{"a":"maybe"}'}]}, "examples[0].answer", "must follow"),
        ({"examples": [{"message": "x", "answer": '{"a":"yes","b":1}'}]}, "examples[0].answer", "must follow"),
        ({"examples": [{"message": "x", "answer": "[]"}]}, "examples[0].answer", "must follow"),
        ({"max_tokens": 8}, "examples[0].answer", "must fit into max_tokens, it takes 12 of 8"),
        ({"examples": [{"message": "x" * 190, "answer": '{"a":"no"}'}]}, "examples[0].message", "into the context"),
    ],
)
async def test_a_contract_that_cannot_be_kept_is_refused_by_field_and_rule(
    check: ContractCheck, changes: dict[str, Any], field: str, rule: str
) -> None:
    with pytest.raises(IntakeError) as refusal:
        await check.check(parse_contract(json.dumps(GOOD | changes).encode()))
    assert refusal.value.field == f"contract.json {field}" and rule in refusal.value.rule
