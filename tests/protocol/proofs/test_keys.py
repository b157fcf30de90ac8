"""Key files: each later key is endorsed by an earlier one, and a saved file is never contradicted by a newer one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.proofs.errors import ProofRejected
from protocol.proofs.keys import KeyFile, check_continues, read_key_file
from tests.protocol.proofs import made

FIRST, SECOND = made.key_file(rotated=True).keys


def changed(**changes: Any) -> KeyFile:
    """The rotated file with other fields of its second key."""
    return made.key_file(keys=(FIRST, msgspec.structs.replace(SECOND, **changes)))


def test_a_key_file_is_read_with_its_history() -> None:
    for file in (made.key_file(), made.key_file(rotated=True)):
        assert read_key_file(msgspec.json.encode(file)) == file


@pytest.mark.parametrize(
    "file",
    [
        changed(endorsement=None),
        changed(endorsed_by=None),
        changed(endorsed_by=made.NEW_ID),
        changed(valid_from=made.NOW - 5),
        changed(public_key=made.public(made.REPLICA)),
        changed(endorsement="A" * 86),
        made.key_file(keys=(msgspec.structs.replace(FIRST, valid_until=made.NOW - 1), SECOND)),
    ],
)
def test_a_later_key_without_the_endorsement_of_an_earlier_valid_one_is_refused(file: KeyFile) -> None:
    with pytest.raises(ProofRejected) as refusal:
        read_key_file(msgspec.json.encode(file))
    assert refusal.value.rule == "key_history"


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b" " * (2**20 + 1), b'{"format": "intarsia/keys/v2"}'])
def test_bytes_of_any_kind_are_no_key_file(data: bytes) -> None:
    with pytest.raises(ProofRejected) as refusal:
        read_key_file(data)
    assert refusal.value.rule == "key_file"


def test_a_key_is_named_once() -> None:
    with pytest.raises(ProofRejected, match="twice"):
        read_key_file(msgspec.json.encode(made.key_file(keys=(FIRST, FIRST))))


def test_a_newer_file_ends_keys_and_adds_endorsed_ones() -> None:
    check_continues(made.key_file(), made.key_file())
    check_continues(made.key_file(rotated=True), made.key_file())
    earlier_end = msgspec.structs.replace(FIRST, valid_until=made.NOW - 500)  # it was stolen
    check_continues(made.key_file(keys=(earlier_end,)), made.key_file(rotated=False))


@pytest.mark.parametrize(
    "newer",
    [
        made.key_file(),  # the second key is gone
        made.key_file(keys=(SECOND, FIRST)),
        made.key_file(keys=(msgspec.structs.replace(FIRST, valid_until=None), SECOND)),
        made.key_file(keys=(msgspec.structs.replace(FIRST, valid_until=made.NOW + 1), SECOND)),
        made.key_file(keys=(msgspec.structs.replace(FIRST, valid_from=made.NOW - 2_000), SECOND)),
        made.key_file(keys=(msgspec.structs.replace(FIRST, public_key=made.public(made.NEW)), SECOND)),
    ],
)
def test_a_newer_file_that_contradicts_the_saved_one_is_refused(newer: KeyFile) -> None:
    with pytest.raises(ProofRejected) as refusal:
        check_continues(newer, made.key_file(rotated=True))
    assert refusal.value.rule == "key_history"
