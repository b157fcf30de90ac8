"""The frame of a verification job: length, JSON, key."""

from __future__ import annotations

import io

import msgspec
import pytest

from protocol.errors import ProtocolError
from protocol.verification import MAX_JOB_BYTES, VerificationJob, frame_job, read_job
from tests.protocol.test_messages import JOB

KEY = bytearray(range(32))


def test_a_job_is_read_up_to_its_key() -> None:
    job = msgspec.convert(JOB, VerificationJob)
    stream = io.BytesIO(frame_job(job, KEY))
    assert read_job(stream) == job and stream.read() == bytes(KEY)


@pytest.mark.parametrize("size", [0, MAX_JOB_BYTES + 1, 2**32 - 1])
def test_a_length_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        read_job(io.BytesIO(size.to_bytes(4, "big") + b"{}"))


def test_a_torn_job_is_refused() -> None:
    framed = bytes(frame_job(msgspec.convert(JOB, VerificationJob), KEY))
    for length in (0, 3, 4, 50):
        with pytest.raises(ProtocolError):
            read_job(io.BytesIO(framed[:length]))
