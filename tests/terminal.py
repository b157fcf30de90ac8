"""A machine with an empty folder on which somebody pastes printed commands into a real shell at a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import sysconfig
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

LIMIT_SECONDS = 200.0
_CODE = re.compile(rb"enter the code:\s+([A-Z0-9-]+)\s")


def make_machine(home: Path) -> dict[str, str]:
    """Return the environment of a machine: `python3`, and what pip would fetch, without the packages of this clone."""
    programs, libraries = home / "bin", home / "libraries"
    programs.mkdir()
    libraries.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not re.match(r"_{0,2}editable_{0,2}.*|intarsia.*|pip.*|.*\.pth", entry.name, re.IGNORECASE):
            (libraries / entry.name).symlink_to(entry)
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(home),
        "TERM": "dumb",
        "PYTHONPATH": str(libraries),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_COMPILE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run_at_a_terminal(
    lines: list[str],
    environment: dict[str, str],
    folder: Path,
    confirm: Callable[[str], None],
    answers: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run the lines in a folder as somebody who pastes them; return what was shown.

    `confirm` is called once with the code that `intarsia login` shows, and `answers` are typed after the questions that
    they are to. A line that fails is an AssertionError.
    """
    folder.mkdir(exist_ok=True)
    file = folder.with_suffix(".sh")
    file.write_text("\n".join(lines))
    config = {"INTARSIA_CONFIG_DIR": f"{folder}-config", "INTARSIA_CACHE_DIR": f"{folder}-cache"}
    master, slave = pty.openpty()
    command = ["/bin/bash", "-c", 'exec <"$0" >"$0" 2>&1; exec /bin/bash -e "$1"', os.ttyname(slave), str(file)]
    process = subprocess.Popen(command, cwd=folder, env=environment | config, start_new_session=True)
    shown, deadline, code, asked = b"", time.monotonic() + LIMIT_SECONDS, None, dict(answers)
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([master], [], [], 0.2)[0]:
                shown += os.read(master, 65536)
            if code is None and (code := _CODE.search(shown)) is not None:
                confirm(code[1].decode())
            for question in [one for one in asked if one.encode() in shown]:
                os.write(master, f"{asked.pop(question)}\n".encode())
        while select.select([master], [], [], 0)[0]:
            shown += os.read(master, 65536)
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)
    text = shown.decode(errors="replace")
    assert process.returncode == 0, text
    return text


def answer_at_a_terminal(command: list[str], answers: dict[str, str], environment: dict[str, str], folder: Path) -> str:
    """Run a command that asks; type the answer to each question once it is shown, in their order."""
    master, slave = pty.openpty()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True, preexec_fn=_own_terminal, **streams
    )  # type: ignore[call-overload]
    os.close(slave)
    shown, deadline, asked = "", time.monotonic() + LIMIT_SECONDS, list(answers.items())
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 0.2)[0]:
                continue
            try:
                shown += os.read(master, 65536).decode(errors="replace")
            except OSError:  # the other end is closed: the command has ended
                break
            if asked and shown.rstrip().endswith(asked[0][0]):
                os.write(master, (asked.pop(0)[1] + "\n").encode())
    finally:
        process.kill() if time.monotonic() >= deadline else process.wait(60)
        os.close(master)
    assert process.returncode == 0 and not asked, shown
    return shown


def _own_terminal() -> None:
    """Make standard input the terminal that passwords are asked at."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
