"""Values put back into answers, whole and streamed: any split of a stream gives the same text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from marketplace.gateway.sse import events
from marketplace.guards.masking import Mask
from marketplace.guards.restoring import Restorer, StreamRestorer
from protocol.events import DONE, event_data, event_tokens, format_event

VALUES = {"<EMAIL_1>": "bob@x.com", "<EMAIL_12>": '"ann \\ lee"@x.com', "<CARD_1>": "4111 1111 1111 1111"}
MASK = Mask(VALUES)
Placed = tuple[int, str, str]  # choice, channel, text

texts = st.lists(
    st.sampled_from(
        [*VALUES, "<EMAIL_2>", "<", "<EMA", "EMAIL_1>", "<<EMAIL_1>", "<EMAIL_1", " ", "x", '"', "é", "<b>"]
    )
).map("".join)


@st.composite
def split(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the tokens that it comes in."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def plain(text: str, *, escaped: bool = False) -> str:
    for name, value in VALUES.items():
        text = text.replace(name, json.dumps(value, ensure_ascii=False)[1:-1] if escaped else value)
    return text


def delta_of(channel: str, text: str) -> dict[str, Any]:
    if channel == "arguments":
        return {"tool_calls": [{"index": 1, "function": {"arguments": text}}]}
    return {channel: text}


def stream_of(pieces: list[Placed], finishes: dict[int, int]) -> list[bytes]:
    """One event a token; `finishes`: after which event a choice says that it is finished."""
    raw = []
    for number, (index, channel, text) in enumerate(pieces):
        choice = {"index": index, "delta": delta_of(channel, text), "finish_reason": None}
        raw.append(format_event(json.dumps({"id": "c", "choices": [choice]}).encode(), number + 1))
    for index in finishes:
        end = {"id": "c", "choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}
        raw.append(format_event(json.dumps(end).encode(), len(pieces)))
    return raw


def read(stream: list[bytes]) -> dict[tuple[int, str], str]:
    """The text that a client puts together."""
    found: dict[tuple[int, str], str] = {}
    for raw in stream:
        data = event_data(raw)
        assert data is not None
        for choice in json.loads(data)["choices"]:
            for channel, value in choice["delta"].items():
                if channel == "tool_calls":
                    for call in value:
                        assert call["index"] == 1
                        key = (choice["index"], "arguments")
                        found[key] = found.get(key, "") + call["function"]["arguments"]
                else:
                    key = (choice["index"], channel)
                    found[key] = found.get(key, "") + value
    return found


def restored(raw: list[bytes], mask: Mask = MASK) -> list[bytes]:
    restorer = StreamRestorer(mask)
    found = [restorer.event(one) for one in raw]
    rest = restorer.end()
    assert not restorer._held
    return [*found, rest] if rest else found


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 2), st.sampled_from(["content", "reasoning_content", "arguments"])),
        split(),
        max_size=4,
    ),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_any_split_of_a_stream_gives_the_same_text(
    channels: dict[tuple[int, str], tuple[str, list[str]]], random: Any, finished: bool
) -> None:
    queues = {key: list(tokens) for key, (_, tokens) in channels.items()}
    pieces: list[Placed] = []
    while any(queues.values()):
        key = random.choice([one for one, left in queues.items() if left])
        pieces.append((*key, queues[key].pop(0)))
    finishes = {index: 1 for index, _ in channels} if finished else {}
    found = restored(stream_of(pieces, finishes))
    expected = {key: plain(text, escaped=key[1] == "arguments") for key, (text, _) in channels.items()}
    assert {key: text for key, text in read(found).items() if text} == {k: t for k, t in expected.items() if t}
    counts = [event_tokens(raw) or 0 for raw in found]
    assert counts == sorted(counts) and (not pieces or counts[-1] == len(pieces))


@given(split())
def test_no_more_is_held_back_than_the_beginning_of_a_placeholder(one: tuple[str, list[str]]) -> None:
    restorer, so_far, sent = StreamRestorer(MASK), "", ""
    for number, token in enumerate(one[1]):
        so_far += token
        (event,) = stream_of([(0, "content", token)], {})
        out = restorer.event(event)
        sent += read([out]).get((0, "content"), "")
        at = max(
            (so_far.rfind(name[:n]) for name in VALUES for n in range(1, len(name)) if so_far.endswith(name[:n])),
            default=-1,
        )
        held = so_far[at:] if at >= 0 else ""
        assert sent == plain(so_far.removesuffix(held) if held else so_far), number


def test_a_token_that_is_held_back_does_not_count_as_delivered() -> None:
    tokens = ["to ", "<", "EMAIL", "_1", ">", " now"]
    found = restored(stream_of([(0, "content", token) for token in tokens], {}))
    assert [event_tokens(raw) for raw in found] == [1, 1, 1, 1, 5, 6]


def test_events_in_which_nothing_begins_pass_as_they_came() -> None:
    raw = [*stream_of([(0, "content", "a"), (0, "content", "> b")], {}), b": ping\n\n", DONE]
    assert restored(raw) == raw


def test_the_end_of_a_completion_is_handed_over() -> None:
    event = format_event(json.dumps({"id": "c", "choices": [{"index": 0, "text": "a <EM"}]}).encode(), 3)
    first, rest = restored([event])
    assert json.loads(event_data(first) or b"")["choices"][0]["text"] == "a "
    assert json.loads(event_data(rest) or b"") == {
        "id": "c",
        "choices": [{"index": 0, "text": "<EM", "finish_reason": None}],
    }
    assert event_tokens(rest) == 3


def test_a_whole_answer_has_its_values_and_its_json_stays_json() -> None:
    call = {"index": 0, "function": {"name": "mail", "arguments": '{"to": "<EMAIL_12>"}'}}
    message = {"role": "assistant", "content": "To <EMAIL_12>.", "reasoning": "<CARD_1>", "tool_calls": [call]}
    logprobs = {"content": [{"token": "<EMAIL_12>", "logprob": -1}]}
    answer = {"choices": [{"index": 0, "message": message, "logprobs": logprobs}], "usage": {"total_tokens": 3}}
    Restorer(MASK).answer(answer)
    told = answer["choices"][0]["message"]  # type: ignore[index]
    assert told["content"] == 'To "ann \\ lee"@x.com.' and told["reasoning"] == "4111 1111 1111 1111"
    assert json.loads(told["tool_calls"][0]["function"]["arguments"]) == {"to": VALUES["<EMAIL_12>"]}
    assert answer["choices"][0]["logprobs"] == logprobs, "they are of the masked text"  # type: ignore[index]


def test_an_answer_that_is_json_stays_json() -> None:
    answer = {"choices": [{"index": 0, "message": {"content": '{"to": "<EMAIL_12>"}'}}]}
    Restorer(Mask(VALUES, json_answer=True)).answer(answer)
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"to": VALUES["<EMAIL_12>"]}  # type: ignore[index]


async def _through(chunks: list[bytes]) -> list[bytes]:
    async def arriving() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return restored([raw async for raw in events(arriving())])


async def test_a_stream_that_is_cut_at_any_byte_has_its_values() -> None:
    tokens = ["é <", "EMAIL_1>", "<EMAI", "L_12", "> <CARD_", "1", "><EM"]
    stream = b"".join(stream_of([(0, "content", token) for token in tokens], {0: 1}))
    expected = {(0, "content"): plain("".join(tokens))}
    assert read(await _through([bytes([one]) for one in stream])) == expected
    for cut in range(len(stream) + 1):
        assert read(await _through([stream[:cut], stream[cut:]])) == expected
