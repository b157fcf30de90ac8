"""The child process that runs a real engine, `python -m serving.calibration`: which may import torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from capacity.errors import PlanRefused

_LONGEST_LINE = 64 << 20
_STARTS = 60.0  # seconds that loading a model may take beside the work asked for


def lines_of(arguments: Sequence[str], *, seconds: float) -> Iterator[Mapping[str, Any]]:
    """Start the child and yield what it prints. seconds: the most it may take, beside its start

    Raises PlanRefused with its own words where it fails, takes too long, or prints something else.
    """
    command = [sys.executable, "-m", "serving.calibration", *arguments]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, env=os.environ | {"PYTHONUNBUFFERED": "1"}
        )
        late = threading.Event()

        def end() -> None:
            late.set()
            process.send_signal(signal.SIGKILL)

        timer = threading.Timer(seconds + _STARTS, end)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if len(line) > _LONGEST_LINE:
                    raise PlanRefused(8, "the engine's process printed a line that is too long")
                yield _decode(line)
            if process.wait() != 0:
                if late.is_set():
                    raise PlanRefused(8, f"the engine's process took more than {seconds + _STARTS:.0f} s and was ended")
                said.seek(0)
                raise PlanRefused(8, f"the engine's process failed: {_last_line(said.read())}")
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
            process.wait()


def _decode(line: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise PlanRefused(8, "the engine's process printed something that is no JSON") from error
    if not isinstance(found, dict) or "kind" not in found:
        raise PlanRefused(8, "the engine's process printed something that is no measurement")
    return found


def _last_line(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed no reason"


def engine_flags(model: Path, dtype: str, threads: int, own_clock: bool, extra: Sequence[str]) -> list[str]:
    """Return the child's flags. extra: others of a replica, as `python -m serving` takes them

    Raises PlanRefused where there is no model: before anything is predicted or measured.
    """
    if not (model / "config.json").is_file():
        raise PlanRefused(8, f"--model {model}: no config.json there")
    flags = ["--model", str(model), "--dtype", dtype, "--threads", str(1 if own_clock else threads)]
    return flags + (["--own-clock"] if own_clock else []) + list(extra)
