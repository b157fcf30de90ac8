"""Every program that holds keys or weights refuses core files and readers of its memory, from its start on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from devstack.state import REPOSITORY
from tests.sealed_weights.test_process import PRIVATE, STATE

PROGRAMS = {
    "web": "import marketplace.config.asgi",
    "worker": """
import marketplace.config.celery as celery
from celery.signals import worker_init
worker_init.send(sender=None)
""",
    "beat": """
import marketplace.config.celery as celery
from celery.signals import beat_init
beat_init.send(sender=None)
""",
    "manage.py": """
import runpy, sys
sys.argv = ["manage.py", "version"]
runpy.run_path("manage.py", run_name="__main__")
""",
    "command line": """
from creator_cli.main import app
try:
    app(["whoami"], standalone_mode=False)
except BaseException:
    pass
""",
    "replica": """
import pathlib, tempfile
from serving import __main__ as replica
replica._in_background = lambda work: None
replica._serve_folders = lambda *arguments: 0
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "config.json").write_text("{}")
    assert replica.main(["--model", folder, "--port", "0", "--insecure"]) == 0
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_private_from_its_start_on(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[program] + STATE],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "DJANGO_SETTINGS_MODULE": "marketplace.config.settings"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == PRIVATE
