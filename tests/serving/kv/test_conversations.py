"""The conversations whose KV is here: noted when a request ends, forgotten with their blocks."""

from __future__ import annotations

import random
from typing import cast

from serving.core import AdapterRef, OutputText, Request, SamplingParams, Sequence
from serving.kv.content import Content
from serving.kv.conversations import Conversations
from serving.kv.pool import BlockPool
from serving.kv.tiers import Tiers

SIZE = 4


def ended(conversation: int | None, keys: list[bytes], prompt: int = 9) -> Sequence:
    request = Request(
        "r", "t", "s", AdapterRef(None), tuple(range(prompt)), SamplingParams(), 1, conversation=conversation
    )
    sequence = Sequence(request, 0.0, list(range(prompt)), cast(OutputText, None), random.Random(0))
    sequence.block_keys = keys
    return sequence


def publish(pool: BlockPool, key: bytes) -> int:
    (block,) = pool.allocate(1)
    pool.publish(block, Content(key, None, "s"))
    pool.release([block])
    return block


def test_a_conversation_is_held_while_the_last_full_block_of_its_prompt_is() -> None:
    pool = BlockPool(8, SIZE)
    known = Conversations(pool, Tiers(pool))
    publish(pool, b"one")
    publish(pool, b"two")
    known.note(ended(7, [b"one", b"two", b"answer"]))
    known.note(ended(None, [b"one", b"two"]))
    known.note(ended(8, [b"one"]))  # cut off before its prompt was computed
    known.note(ended(9, [], prompt=3))  # shorter than a block
    assert known.held(9) == [7]
    pool.drop(None)
    assert known.held(9) == []
    publish(pool, b"two")
    assert known.held(9) == [], "what was forgotten stays so until the next turn"


def test_the_latest_are_told_and_the_least_recently_used_are_forgotten() -> None:
    pool = BlockPool(8, SIZE)
    known = Conversations(pool, Tiers(pool), most=3)
    publish(pool, b"one")
    publish(pool, b"two")
    for conversation in (1, 2, 3, 1, 4):
        known.note(ended(conversation, [b"one", b"two"]))
    assert known.held(9) == [4, 1, 3] and known.held(2) == [4, 1]
