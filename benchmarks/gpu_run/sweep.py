"""Stage: the launch sizes of the LoRA kernels on this card; later stages and the records of the run have them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_run import records
from benchmarks.gpu_run.stages import SECONDS
from benchmarks.kernels import gpu_sweep
from lora_kernels.ops import configs, tuning


def keep(data: dict[str, Any], folder: Path) -> None:
    """Write the file that launches read, and the same as a record, which is carried back."""
    records.write_whole(folder / tuning.file_name(data["device"]), json.dumps(data, indent=2) + "\n")
    records.emit({"record": "configuration", **data})


def main() -> int:
    """Sweep for nine tenths of the stage's time."""
    folder = Path(configs.__file__).parent
    gpu_sweep.sweep(0.9 * float(os.environ.get(SECONDS, "600")), 0, lambda data: keep(data, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
