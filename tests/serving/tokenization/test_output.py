"""Text is shown as soon as it is certain and never before."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tokenization.chat_template import ChatTemplate, ChatTemplateError
from serving.tokenization.output import CompletionText, Detokenizer, StopStrings
from serving.tokenization.tokenizer import Tokenizer
from tests.serving.tiny import write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_dir(folder)


def stream(output: CompletionText | Detokenizer, ids: list[int]) -> list[str]:
    return [*(output.push(token) for token in ids), output.finish()]


def test_characters_of_several_tokens_are_shown_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("aé€😀z", add_special_tokens=False)
    pieces = stream(tokenizer.detokenizer(), ids)
    assert [piece for piece in pieces if piece] == ["a", "é", "€", "😀", "z"]


@given(st.text(max_size=30))
def test_pieces_join_to_the_decoded_whole(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(stream(tokenizer.detokenizer(), ids)) == tokenizer.decode(ids)


def test_bytes_that_never_become_a_character_are_shown_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀", add_special_tokens=False)[:2]
    assert stream(tokenizer.detokenizer(), ids) == ["", "", "\ufffd"]


def test_special_tokens_are_not_shown_and_do_not_disturb_their_neighbours(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("ab", add_special_tokens=False), 2, 2, 2, *tokenizer.encode("é", add_special_tokens=False)]
    assert "".join(stream(tokenizer.detokenizer(), ids)) == "abé"


def test_a_stop_string_is_found_across_pieces_and_held_back_until_certain() -> None:
    stops = StopStrings(["END"])
    assert [stops.push(piece) for piece in ("one E", "N", "vy ", "EN")] == ["one ", "", "ENvy ", ""]
    assert stops.push("D tail") == "" and stops.stopped


def test_the_earliest_of_several_stops_counts() -> None:
    stops = StopStrings(["later", "now"])
    assert stops.push("do it now or later") == "do it " and stops.stopped


def test_text_held_for_an_unfinished_stop_string_is_shown_at_the_end() -> None:
    stops = StopStrings(["END"])
    assert stops.push("the EN") == "the " and stops.finish() == "EN" and not stops.stopped


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_any_cutting_into_pieces_gives_the_same_text(text: str, stop: list[str], data: st.DataObject) -> None:
    found = [text.index(s) for s in stop if s in text]
    whole, rest, shown = StopStrings(stop), text, ""
    while rest and not whole.stopped:
        size = data.draw(st.integers(1, len(rest)))
        shown, rest = shown + whole.push(rest[:size]), rest[size:]
    shown += "" if whole.stopped else whole.finish()
    assert whole.stopped == bool(found)
    # The stop that is complete first wins; where pieces are single characters that is the one that ends first.
    assert text.startswith(shown) and (not found or len(shown) >= min(found))
    assert all(s not in shown for s in stop)


def test_a_stop_string_may_be_completed_by_the_last_held_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("x😀", add_special_tokens=False)[:3]
    output = CompletionText(tokenizer.detokenizer(), ["\ufffd"])
    assert "".join(stream(output, ids)) == "x" and output.stopped


def test_the_chat_template_runs_in_a_sandbox() -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ messages.__class__.__mro__ }}", {}).render([{"role": "user", "content": "x"}])
    with pytest.raises(ChatTemplateError, match="no system"):
        ChatTemplate("{{ raise_exception('no system') }}", {}).render([])
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{% if %}", {})


def test_stop_tokens_come_from_every_config(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}')
    assert Tokenizer.from_dir(tmp_path).eos_token_ids == {0, 2, 7, 9}
