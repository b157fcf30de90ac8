"""How many processors a replica counts on, under the quotas that containers get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.cores import available_cores

ALL = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = "4:memory:/m\n1:cpu,cpuacct:/docker/a\n0::/\n"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        pytest.param({}, 8, id="no control groups"),
        pytest.param({"proc/self/cgroup": "0::/\n"}, 8, id="no quota file"),
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8, id="no quota"),
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2, id="two"),
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "190000 100000\n"}, 1, id="1.9"),
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1, id="a half"),
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 8, id="more"),
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"}, 8, id="nonsense"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/user/pod/box\n",
                "sys/fs/cgroup/user/pod/box/cpu.max": "max 100000\n",
                "sys/fs/cgroup/user/pod/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/user/cpu.max": "500000 100000\n",
                "sys/fs/cgroup/other/cpu.max": "100000 100000\n",
            },
            3,
            id="the tightest of its own and those above",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"},
            4,
            id="a container that sees the host's path",
        ),
        pytest.param(
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us": "500000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            5,
            id="version 1",
        ),
    ],
)
def test_a_quota_bounds_the_processors(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert available_cores(write(tmp_path, files)) == cores


def test_this_machine_s_own_files_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 1 <= available_cores() <= ALL
