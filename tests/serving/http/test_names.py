"""Names of a replica without a platform: each means one thing, or the start is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from serving.adapters.directory import DirectoryAdapterSource
from serving.errors import ConfigError
from serving.http.admission import InsecureAuthorizer
from serving.replica import Base
from tests.serving.http.server import serving
from tests.serving.tiny import Tiny


@pytest.mark.parametrize("name", ["base", "my adapter", "a:0.5", "a+b", "-x", "é"])
def test_a_folder_that_could_not_be_called_by_its_name_refuses_the_start(tiny: Tiny, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    source = DirectoryAdapterSource(tmp_path, Base.from_dir(tiny.model).spec)
    InsecureAuthorizer(source, 60)  # a folder without an adapter may have any name
    (tmp_path / name / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError) as refused:
        InsecureAuthorizer(source, 60)
    assert name in str(refused.value) and "rename the folder" in str(refused.value)


async def test_a_folder_that_is_called_base_later_is_nobody(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny.adapters / "r4", tmp_path / "r4")
    async with serving(replace(tiny, adapters=tmp_path)) as server:
        asked = {"prompt": "abc", "max_tokens": 2, "temperature": 0}
        bare = (await server.http.post("/v1/completions", json=asked | {"model": "base"})).json()["choices"]
        shutil.copytree(tiny.adapters / "r4", tmp_path / "base")
        listed = (await server.http.get("/v1/models")).json()["data"]
        assert sorted(one["id"] for one in listed) == ["base", "r4"]
        again = (await server.http.post("/v1/completions", json=asked | {"model": "base"})).json()["choices"]
        assert again == bare
        for name in ("base:1", "base:0.5+r4:0.5", "gpt-4o", ""):
            for path, body in (("completions", asked), ("embeddings", {"input": "a"})):
                answer = await server.http.post(f"/v1/{path}", json=body | {"model": name})
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found"), name


@pytest.mark.deep
def test_the_command_says_which_folder_to_rename(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny.adapters / "r4", tmp_path / "base")
    command = [sys.executable, "-m", "serving", "--insecure", "--device", "cpu", "--port", "0"]
    command += ["--model", str(tiny.model), "--adapters", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "rename the folder" in done.stderr and "Traceback" not in done.stderr, json.dumps(
        done.stderr[-2000:]
    )
