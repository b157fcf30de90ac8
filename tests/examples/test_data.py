"""The generators: the same rows for the same seed, valid labels, and nothing held out that training has seen."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from examples.data import TASKS, heldout_rows, train_rows
from examples.data.__main__ import heldout_lines
from examples.data.rows import Split
from examples.score import ROOT, read_heldout

NAMES = sorted(TASKS)
# More rows than any adapter is trained on, so that no phrase stays undrawn by luck.
TRAINED = 5000


def _words(text: str) -> str:
    """Lower-case words between single blanks, with a blank at both ends, so phrases compare as whole words."""
    return " " + " ".join(re.findall(r"[^\W_]+", text.lower())) + " "


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_rows_and_another_seed_gives_others(name: str) -> None:
    task = TASKS[name]
    assert train_rows(task, 60) == train_rows(task, 60)
    assert train_rows(task, 60, seed=1) != train_rows(task, 60)
    assert heldout_rows(task, 60) == heldout_rows(task, 60)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_distinct_and_their_labels_valid_and_balanced(name: str) -> None:
    task = TASKS[name]
    for rows in (train_rows(task, 1000), heldout_rows(task, 72)):
        assert len({row.text for row in rows}) == len(rows)
        assert all(list(row.expected) == list(task.labels) for row in rows)
        assert all(row.expected[key] in labels for row in rows for key, labels in task.labels.items())
        counts = Counter(row.answer() for row in rows)
        assert len(counts) == len(task.combinations())
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_no_heldout_phrase_or_template_is_in_the_training_lists(name: str) -> None:
    for title, bank in TASKS[name].banks.items():
        trained = {_words(phrase) for phrase in bank.train}
        assert bank.train and bank.heldout, title
        assert len({*bank.train, *bank.heldout}) == len(bank.train) + len(bank.heldout), f"{title} repeats a phrase"
        assert not trained & {_words(phrase) for phrase in bank.heldout}, title


@pytest.mark.parametrize("name", NAMES)
def test_no_heldout_row_shares_a_template_a_phrase_or_a_text_with_the_training_set(name: str) -> None:
    task = TASKS[name]
    trained, held = train_rows(task, TRAINED), heldout_rows(task, 128)
    assert not {row.template for row in trained} & {row.template for row in held}
    assert not {_words(row.text) for row in trained} & {_words(row.text) for row in held}
    # Both as typed and before typos: the phrases a row was made of, and its text.
    seen = "|".join({_words(phrase) for row in trained for phrase in row.phrases} | {_words(r.text) for r in trained})
    phrases = {_words(phrase) for row in held for phrase in row.phrases}
    assert len(phrases) > 60
    assert {phrase for phrase in phrases if phrase in seen} == set()


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("name", NAMES)
def test_no_phrase_stands_for_two_labels(name: str, split: Split) -> None:
    groups: dict[str, list[str]] = {}
    for title, bank in TASKS[name].banks.items():
        groups.setdefault(title.split(".")[0], []).extend(phrase.lower() for phrase in bank.of(split))
    for title, phrases in groups.items():
        assert [phrase for phrase, count in Counter(phrases).items() if count > 1] == [], title


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_heldout_rows_are_what_the_generator_writes(name: str) -> None:
    text = (ROOT / name / "heldout.jsonl").read_text(encoding="utf-8")
    assert text.splitlines() == heldout_lines(name)
    rows = read_heldout(name)
    assert len(rows) >= 64
    for row in rows:
        assert [message["role"] for message in row["messages"]] == ["system", "user"]
        assert set(row) == {"messages", "expected"}


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_is_fair_it_names_every_label_and_the_format(name: str) -> None:
    task = TASKS[name]
    assert all(label in task.system for labels in task.labels.values() for label in labels)
    assert all(f'"{key}":"LABEL"' in task.system for key in task.labels)


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_compact_json(name: str) -> None:
    for row in train_rows(TASKS[name], 50):
        assert json.loads(row.answer()) == row.expected
        assert " " not in row.answer()
