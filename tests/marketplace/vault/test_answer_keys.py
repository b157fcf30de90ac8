"""Kept answers open with their own customer's key, for their own prediction, unchanged."""

from __future__ import annotations

import uuid

import pytest

from marketplace.vault.answer_keys import AnswerCipher, new_answer_key, open_answer_key
from sealed_weights import AuthenticationError

OWNER, OTHER, PREDICTION = (uuid.UUID(int=number) for number in (1, 2, 3))


def test_a_key_is_wrapped_for_its_organization_and_each_is_new() -> None:
    wrapped = new_answer_key(OWNER)
    sealed = open_answer_key(wrapped, OWNER).seal(PREDICTION, b"an answer")
    assert open_answer_key(wrapped, OWNER).open(PREDICTION, sealed) == b"an answer"
    with pytest.raises(AuthenticationError):
        open_answer_key(wrapped, OTHER)
    with pytest.raises(AuthenticationError):
        open_answer_key(new_answer_key(OWNER), OWNER).open(PREDICTION, sealed)


def test_a_sealed_answer_is_bound_to_its_prediction_and_every_byte() -> None:
    cipher = AnswerCipher(b"\5" * 32)
    sealed = cipher.seal(PREDICTION, b"an answer")
    assert b"answer" not in sealed and cipher.seal(PREDICTION, b"an answer") != sealed
    with pytest.raises(AuthenticationError):
        cipher.open(OTHER, sealed)
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(AuthenticationError):
            cipher.open(PREDICTION, bytes(changed))
    for cut in (b"", sealed[:1], sealed[:13], sealed[:-1]):
        with pytest.raises(AuthenticationError):
            cipher.open(PREDICTION, cut)
