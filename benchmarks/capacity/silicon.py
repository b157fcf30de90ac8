"""Reads public measurements of dense models: `silicon_sample.csv` of ai-dynamo/aiconfigurator (Apache-2.0).

The file is in the wheel of aiconfigurator-core, which users download themselves; nothing of it is kept here. Its rows
have TTFT and TPOT of a closed loop. The throughput is what follows from them: `batch · output / (TTFT + (output − 1) ·
TPOT)`, with the batch of one replica (`batch_size`), not the callers of several (`silicon_concurrency`).
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from capacity.memory import ModelShape

FILE = "silicon_sample.csv"
HINT = "pip download aiconfigurator-core==0.12.0 --no-deps --only-binary :all:"
_MOST_BYTES = 256 << 20
Name = TypeVar("Name", str, Path)


@dataclass(frozen=True)
class Dense:
    """A dense model: sizes of its layers, and those of its vocabulary (weights of the output head)."""

    name: str
    shape: ModelShape
    query_width: int
    head: int


# The sizes are those of each model's config.json; adapters' sites play no part here.
LLAMA_8B = Dense("Llama-3.1 8B", ModelShape(32, 4096, 8, 128, 8_030_261_248, 0), 4096, 525_336_576)
LLAMA_70B = Dense("Llama-3.1 70B", ModelShape(80, 8192, 8, 128, 70_553_706_496, 0), 8192, 1_050_673_152)
QWEN_32B = Dense("Qwen3 32B", ModelShape(64, 5120, 8, 128, 32_762_123_264, 0), 8192, 777_912_320)
MODELS: Mapping[str, Dense] = {
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_8B,
    "nvidia/Llama-3.1-8B-Instruct-FP8": LLAMA_8B,
    "meta-llama/Llama-3.1-70B": LLAMA_70B,
    "Qwen/Qwen3-32B": QWEN_32B,
    "nvidia/Qwen3-32B-NVFP4": QWEN_32B,
}
# The file's word for a machine → the name in the catalogue.
CARDS: Mapping[str, str] = {"h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm", "gb200": "gb200"}
ENGINES: Mapping[str, str] = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
# The file's word for products → bytes of a weight, with the scales of its blocks. Unnamed: the model's own 16 bits.
WEIGHT_BYTES: Mapping[str, float] = {"": 2.0, "bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}


@dataclass(frozen=True)
class Configuration:
    """One engine with one model on one replica. precision: a key of WEIGHT_BYTES"""

    model: str
    engine: str
    version: str
    card: str
    precision: str
    cards: int

    @property
    def dense(self) -> Dense:
        """Return the model's sizes."""
        return MODELS[self.model]


@dataclass(frozen=True)
class Point:
    """A closed loop of `batch` callers with prompts and outputs of one length. ttft, tpot: seconds"""

    batch: int
    prompt: int
    output: int
    ttft: float
    tpot: float

    @property
    def cell(self) -> tuple[int, int, int]:
        """Return what was asked."""
        return self.batch, self.prompt, self.output

    @property
    def throughput(self) -> float:
        """Return output tokens per second."""
        return self.batch * self.output / (self.ttft + (self.output - 1) * self.tpot)


def read(path: Path) -> dict[Configuration, list[Point]]:
    """Return the rows of the models, machines and engines above, without disaggregated ones, by configuration.

    path: a wheel, a folder that has the file somewhere below it, or the file itself. Raises FileNotFoundError where the
    file is not there, ValueError for a file of another form.
    """
    found: dict[Configuration, list[Point]] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(_text(path))), 2):
        try:
            if row["mode"] != "agg" or row["model_path"] not in MODELS or row["system"] not in CARDS:
                continue
            configuration, point = _row(row)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{FILE}, line {number}: {error!r}; this reads the form of 0.12.0") from None
        found.setdefault(configuration, []).append(point)
    if not found:
        raise ValueError(f"{FILE} has no row of a dense model on a machine of the catalogue")
    return found


def _row(row: Mapping[str, str]) -> tuple[Configuration, Point]:
    if row["gemm_quant_mode"] not in WEIGHT_BYTES or int(row["pp_size"]) != 1:
        raise ValueError(f"weights in {row['gemm_quant_mode']!r}, {row['pp_size']} stages")
    configuration = Configuration(
        row["model_path"],
        ENGINES[row["backend"]],
        row["backend_version"],
        CARDS[row["system"]],
        row["gemm_quant_mode"],
        int(row["tp_size"]),
    )
    point = Point(
        int(row["batch_size"]),
        int(row["isl"]),
        int(row["osl"]),
        float(row["silicon_ttft_ms"]) / 1e3,
        float(row["silicon_tpot_ms"]) / 1e3,
    )
    if min(configuration.cards, *point.cell) < 1 or not (0 < point.ttft < 1e6 and 0 < point.tpot < 1e6):
        raise ValueError("a figure that cannot be")
    return configuration, point


def _text(path: Path) -> str:
    if path.is_dir():
        return _text(_only(sorted(path.rglob(FILE)) or sorted(path.rglob("*.whl")), path))
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; get the wheel by `{HINT}`")
    if path.suffix != ".whl":
        return path.read_text(encoding="utf-8")
    with zipfile.ZipFile(path) as wheel:
        name = _only([name for name in wheel.namelist() if name.rpartition("/")[2] == FILE], path)
        if wheel.getinfo(str(name)).file_size > _MOST_BYTES:
            raise ValueError(f"{name} is longer than {_MOST_BYTES >> 20} MiB")
        return wheel.read(str(name)).decode("utf-8")


def _only(names: Iterable[Name], where: Path) -> Name:
    several = list(names)
    if len(several) != 1:
        raise FileNotFoundError(f"{where} has {len(several)} files {FILE}; get the wheel by `{HINT}`")
    return several[0]
