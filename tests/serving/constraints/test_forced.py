"""Tokens that a grammar forces: those of a draft that nothing was learned for."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from serving.constraints import GrammarCompiler, json_spec
from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.speculation import Drafter, Source
from tests.serving.scheduler.fakes import PlainText
from tests.serving.tiny import write_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["one", "two"]}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_a_schema_drafts_its_compact_form_and_stops_where_an_answer_leaves_it(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    compiler = GrammarCompiler((tmp_path / "tokenizer.json").read_text, 259, [2])
    grammar = asyncio.run(compiler.compile(json_spec(SCHEMA)))
    compiler.close()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    def offered(text: str) -> str:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        request = Request("r", "t", "s", AdapterRef(), (5,), SamplingParams(constraint=grammar), 100)
        sequence = Sequence(request, 0.0, [5, *ids], PlainText(), random.Random(0))
        offer = Drafter([2]).offer(sequence, 64, 0.0)
        assert not offer.tokens or offer.source is Source.SCHEMA
        return str(tokenizer.decode(list(offer.tokens)))

    assert offered("") == '{"name":'  # as many as a draft may hold
    assert offered('{"name":"o') == 'ne"}'
    assert offered('{"name":"one"}') == "", "the end needs no draft"
    assert offered('{ "name') == "", "white space is allowed, and no guess follows it"
