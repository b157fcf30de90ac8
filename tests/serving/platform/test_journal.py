"""The usage journal: crashes at any byte, kills, a full disk, rotation."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.journal import Checkpoint, Dropped, Final, Progress, decode_line, encode_line
from serving.platform.errors import JournalUnavailable
from serving.platform.journal import UsageJournal
from serving.platform.journal_file import segment_path

REPOSITORY = Path(__file__).resolve().parents[3]
REPLICA = "00000000-0000-4000-8000-000000000009"


def progress(jti: str, tokens: int = 1) -> Progress:
    return Progress(jti, 1, REPLICA, None, 10, 4, tokens, 1000.0)


def new_id() -> str:
    return str(uuid.uuid4())


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_finished_prediction_is_on_the_disk_when_its_future_resolves(tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path)
    one = new_id()
    assert journal.lookup(one, 1) == ("unknown", None)
    journal.progress(progress(one))
    assert journal.lookup(one, 1) == ("running", None)
    journal.finish(one, 1, "receipt-1").result(10)
    assert b"receipt-1" in segment_path(tmp_path, 1).read_bytes()
    assert journal.lookup(one, 1) == ("final", "receipt-1")
    journal.close()


def test_a_prediction_ends_once(tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path)
    one = new_id()
    journal.finish(one, 1, "first").result(10)
    journal.finish(one, 1, "second").result(10)
    assert journal.lookup(one, 1) == ("final", "first")
    journal.close()
    assert b"second" not in segment_path(tmp_path, 1).read_bytes()


def test_receipts_survive_a_restart_and_nothing_else_is_called_interrupted(tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path)
    ended, refused, open_ = new_id(), new_id(), new_id()
    for jti in (ended, refused, open_):
        journal.progress(progress(jti, 16))
    journal.finish(ended, 1, "receipt").result(10)
    journal.drop(refused, 1)
    journal.close()
    again = UsageJournal(tmp_path)
    assert again.lookup(ended, 1) == ("final", "receipt")
    assert again.lookup(refused, 1) == ("unknown", None)
    assert [p.jti for p in again.interrupted()] == [open_]
    assert again.lookup(open_, 1) == ("running", None)
    again.finish(open_, 1, "interrupted").result(10)
    assert again.interrupted() == [] and again.lookup(open_, 1) == ("final", "interrupted")
    again.close()
    last = UsageJournal(tmp_path)
    assert last.interrupted() == [] and last.lookup(open_, 1) == ("final", "interrupted")
    last.close()


def test_a_journal_cut_at_any_byte_opens_with_everything_before_the_cut(tmp_path: Path) -> None:
    a, b, c = new_id(), new_id(), new_id()
    lines = [
        encode_line(Checkpoint([progress(a, 1), progress(b, 2)])),
        encode_line(Final(a, 1, "receipt-a")),
        encode_line(Checkpoint([progress(b, 17), progress(c, 1)])),
        encode_line(Dropped(c, 1)),
        encode_line(Final(b, 1, "receipt-b")),
    ]
    whole = b"".join(lines)
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    for cut in range(len(whole) + 1):
        folder = tmp_path / "journal"
        folder.mkdir()
        segment_path(folder, 1).write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)
        journal = UsageJournal(folder)
        states = {jti: journal.lookup(jti, 1)[0] for jti in (a, b, c)}
        left = {p.jti: p.completion_tokens for p in journal.interrupted()}
        expected = [
            ({}, {}),
            ({a: "running", b: "running"}, {a: 1, b: 2}),
            ({a: "final", b: "running"}, {b: 2}),
            ({a: "final", b: "running", c: "running"}, {b: 17, c: 1}),
            ({a: "final", b: "running"}, {b: 17}),
            ({a: "final", b: "final"}, {}),
        ][complete]
        assert ({k: v for k, v in states.items() if v != "unknown"}, left) == expected, cut
        assert segment_path(folder, 1).read_bytes() == whole[: ends[complete - 1] if complete else 0]
        if cut % 10 == 0:
            journal.finish(c, 1, "after the crash").result(10)
        journal.close()
        assert all(decode_line(line) for line in segment_path(folder, 1).read_bytes().splitlines(keepends=True))
        shutil.rmtree(folder)


def test_a_flipped_bit_loses_its_own_line_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, b = new_id(), new_id()
    first, second = encode_line(Final(a, 1, "receipt-a")), encode_line(Final(b, 1, "receipt-b"))
    segment_path(tmp_path, 1).write_bytes(first.replace(b"receipt", b"rEceipt") + second)
    journal = UsageJournal(tmp_path)
    assert journal.lookup(a, 1) == ("unknown", None)
    assert journal.lookup(b, 1) == ("final", "receipt-b")
    assert "damaged" in caplog.text
    journal.close()


WRITER = """
import sys, uuid, json
from pathlib import Path
from serving.platform.journal import UsageJournal
from protocol.journal import Progress
journal, replica = UsageJournal(Path(sys.argv[1])), str(uuid.uuid4())
while True:
    jti = str(uuid.uuid4())
    for tokens in range(1, 40):
        journal.progress(Progress(jti, 1, replica, None, 5, 0, tokens, 0.0))
    journal.finish(jti, 1, "receipt of " + jti).result()
    sys.stdout.write(jti + "\\n")
    sys.stdout.flush()
"""


def test_every_receipt_that_was_handed_out_survives_a_kill(tmp_path: Path) -> None:
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
        )
        assert process.stdout is not None
        handed_out = [process.stdout.readline().strip() for _ in range(5)]
        process.send_signal(signal.SIGKILL)
        handed_out += process.stdout.read().split()
        process.wait(10)
        journal = UsageJournal(tmp_path)
        for jti in handed_out:
            assert journal.lookup(jti, 1) == ("final", f"receipt of {jti}")
        for left in journal.interrupted():
            journal.finish(left.jti, 1, "interrupted").result(10)
        journal.close()


def test_two_processes_cannot_write_one_journal(tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path)
    with pytest.raises(JournalUnavailable, match="--replica-name"):
        UsageJournal(tmp_path)
    journal.close()
    UsageJournal(tmp_path).close()


def test_running_predictions_are_checkpointed_together_without_being_asked(tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path)
    ids = [new_id() for _ in range(50)]
    for jti in ids:
        journal.progress(progress(jti, 3))
    eventually(lambda: segment_path(tmp_path, 1).stat().st_size > 0)
    journal.close()
    lines = segment_path(tmp_path, 1).read_bytes().splitlines(keepends=True)
    assert len(lines) <= 2
    written = {p.jti for line in lines for p in decode_line(line).running}  # type: ignore[union-attr]
    assert written == set(ids)


FULL_DISK = """
import json, resource, sys, time, uuid, logging
from pathlib import Path
from serving.platform import journal as module
module.RETRY_SECONDS = 0.05
logging.basicConfig(level=logging.INFO)
journal = module.UsageJournal(Path(sys.argv[1]))
early, owed = str(uuid.uuid4()), str(uuid.uuid4())
journal.finish(early, 1, "early").result(10)
size = (Path(sys.argv[1]) / "00000001.journal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))
future = journal.finish(owed, 1, "owed" * 20)
deadline = time.monotonic() + 60
while journal.accepting and time.monotonic() < deadline:
    time.sleep(0.01)
found = {"refuses": not journal.accepting, "owed": journal.lookup(owed, 1)[0], "early": journal.lookup(early, 1)[0]}
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
future.result(10)
found |= {"accepts": journal.accepting, "later": journal.lookup(owed, 1)[0]}
journal.close()
print(json.dumps(found))
"""


def test_a_full_disk_refuses_new_work_and_loses_nothing_when_it_has_room_again(tmp_path: Path) -> None:
    """A file-size limit stands in for the disk: the write fails half-way through a line, as on a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, cwd=REPOSITORY, text=True, timeout=40
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "refuses": True,
        "owed": "running",
        "early": "final",
        "accepts": True,
        "later": "final",
    }
    assert "cannot be written" in done.stderr and "can be written again" in done.stderr
    assert done.stderr.count("cannot be written") == 1
    for line in segment_path(tmp_path, 1).read_bytes().splitlines(keepends=True):
        assert decode_line(line) is not None


def test_old_segments_go_and_what_is_running_stays_known(tmp_path: Path) -> None:
    journal = UsageJournal(tmp_path, segment_bytes=2000, keep_segments=3)
    long_running, first = new_id(), new_id()
    journal.progress(progress(long_running, 16))
    journal.finish(first, 1, "x" * 500).result(10)
    last = [new_id() for _ in range(30)]
    for jti in last:
        journal.finish(jti, 1, "x" * 500).result(10)
    eventually(lambda: len(list(tmp_path.glob("*.journal"))) <= 3)
    assert journal.lookup(first, 1) == ("unknown", None)
    assert journal.lookup(last[-1], 1) == ("final", "x" * 500)
    journal.close()
    again = UsageJournal(tmp_path)
    assert [p.jti for p in again.interrupted()] == [long_running]
    assert again.lookup(last[-1], 1) == ("final", "x" * 500)
    again.close()


def test_an_unwritable_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(JournalUnavailable, match="file"):
        UsageJournal(tmp_path / "file" / "journal")


def test_journal_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    UsageJournal(folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
