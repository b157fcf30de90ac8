"""A replica's good-bye: what it says, and when it leaves without one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.admin import JournalKey
from protocol.journal import Progress
from protocol.replicas import GoodBye, GoodByeAnswer, LastWord
from serving.platform import farewell
from serving.platform.errors import VaultUnreachable
from serving.platform.farewell import say_goodbye
from serving.platform.journal import UsageJournal


class Vault:
    """The platform's side: one answer after the other, the last for ever."""

    def __init__(self, *answers: GoodByeAnswer | Exception) -> None:
        self.answers, self.heard = list(answers), []

    heard: list[list[LastWord]]

    def goodbye(self, replica_id: str, message: GoodBye) -> GoodByeAnswer:
        self.heard.append(message.words)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[UsageJournal]:
    made = UsageJournal(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farewell, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(farewell, "GOODBYE_SECONDS", 0.2)


def leave(vault: Vault, journal: UsageJournal) -> bool:
    client: Any = vault
    return say_goodbye(client, "7e57", journal)


def test_the_owed_receipts_are_handed_over_and_what_it_does_not_know_is_said(journal: UsageJournal) -> None:
    known, unknown = str(uuid.uuid4()), str(uuid.uuid4())
    journal.finish(known, 2, "a.b.c").result(10)
    owed = [JournalKey(known, 2), JournalKey(known, 1), JournalKey(unknown, 1)]
    vault = Vault(GoodByeAnswer(False, owed), GoodByeAnswer(False, []), GoodByeAnswer(True, []))
    assert leave(vault, journal)
    told = [LastWord(known, 2, "a.b.c"), LastWord(known, 1, None), LastWord(unknown, 1, None)]
    assert vault.heard == [[], told, []]


def test_a_platform_that_is_away_or_never_agrees_holds_nobody_up(journal: UsageJournal) -> None:
    away = Vault(VaultUnreachable("away"))
    assert not leave(away, journal) and len(away.heard) == 1
    assert not leave(Vault(GoodByeAnswer(False, [])), journal)


def test_a_journal_with_more_to_say_says_no_good_bye(journal: UsageJournal) -> None:
    journal.progress(Progress(str(uuid.uuid4()), 1, str(uuid.uuid4()), None, 1, 0, 1, 0.0, "standard"))
    vault = Vault(GoodByeAnswer(True, []))
    assert not leave(vault, journal) and vault.heard == []
