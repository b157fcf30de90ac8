"""The delivery log: a process that was killed leaves behind what it had handed over."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from marketplace.gateway.delivery_log import Delivery, DeliveryLog, DeliveryState, LogFull, orphans

FIRST, SECOND, THIRD = (uuid.UUID(int=n << 64 | n) for n in (1, 2, 3))

_OWNER = """
import pathlib, sys, uuid
from marketplace.gateway.delivery_log import DeliveryLog
log = DeliveryLog(pathlib.Path(sys.argv[1]), uuid.UUID(int=7), slots=8)
stream, whole, done = (log.open(uuid.UUID(int=n << 64 | n)) for n in (1, 2, 3))
stream.running(1, 3)
stream.running(2, 0)
stream.running(2, 258)
whole.unsent(1)
done.free()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_what_it_handed_over(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
        assert list(orphans(tmp_path)) == [], "a living process keeps its own"
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    for orphan in orphans(tmp_path):
        assert sorted(orphan.deliveries(), key=lambda one: one.prediction_id.int) == [
            Delivery(FIRST, 2, DeliveryState.RUNNING, 258),
            Delivery(SECOND, 1, DeliveryState.UNSENT, 0),
        ]
        orphan.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_is_closed_with_predictions_in_flight_is_left_for_others(tmp_path: Path) -> None:
    log = DeliveryLog(tmp_path, FIRST, slots=2)
    log.open(SECOND)
    log.close()
    assert [orphan.deliveries() for orphan in orphans(tmp_path)] == [[Delivery(SECOND, 1, DeliveryState.RUNNING, 0)]]


def test_a_log_that_is_closed_when_idle_leaves_nothing(tmp_path: Path) -> None:
    log = DeliveryLog(tmp_path, FIRST, slots=2)
    slot = log.open(SECOND)
    slot.free()
    slot.free()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_log_refuses_and_a_place_is_used_again(tmp_path: Path) -> None:
    log = DeliveryLog(tmp_path, FIRST, slots=1)
    slot = log.open(SECOND)
    slot.running(3, 9)
    with pytest.raises(LogFull):
        log.open(THIRD)
    slot.free()
    again = log.open(THIRD)
    log.close()
    (left,) = [orphan.deliveries() for orphan in orphans(tmp_path)]
    assert left == [Delivery(THIRD, 1, DeliveryState.RUNNING, 0)]
    assert again is not slot


def test_a_file_that_ends_inside_a_slot_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    log = DeliveryLog(tmp_path, FIRST, slots=2)
    for prediction in (SECOND, THIRD):
        log.open(prediction)
    log.close()
    path = log.path
    path.write_bytes(path.read_bytes()[:-8])
    (left,) = [orphan.deliveries() for orphan in orphans(tmp_path)]
    assert len(left) == 1
