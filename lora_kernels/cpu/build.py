"""Compile a folder of C sources once, into the user's cache: our own kernels, or another package's like them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lora_kernels.errors import BackendError

SOURCE_FOLDER = Path(__file__).parent
# The kernels read bfloat16 rows through pointers of several types.
FLAGS = ("-O3", "-std=c11", "-fPIC", "-fno-strict-aliasing", "-fno-math-errno")
# A file takes up to 50 s; on a busy machine of two cores 120 were not enough, and the replica fell back to torch.
COMPILE_SECONDS = 600


@contextlib.contextmanager
def built_library(sources: Path = SOURCE_FOLDER, name: str = "sgmv", headers: Path | None = None) -> Iterator[Path]:
    """Path of the library compiled from `sources/*.c`, valid inside the block.

    Where no cache can be written it is a private temporary file. `headers`: another folder to find headers in.

    The compiler is `$CC`, else `cc`. The cache is `$XDG_CACHE_HOME/lora_kernels`, else `~/.cache/lora_kernels`; entries
    are named by `name` and a hash of sources, compiler and flags, and appear by an atomic rename.
    Raises BackendError when there is no compiler or it fails.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise BackendError("no C compiler: install one (package gcc or clang) or set CC")
    file = f"{name}-{_fingerprint(compiler, sources, headers)}.so"
    folder = _cache_folder()
    if folder is not None and _is_ours(folder / file):
        yield folder / file
        return
    with tempfile.TemporaryDirectory(prefix="lora_kernels-") as scratch:
        if folder is None:
            library = _compile(compiler, sources, headers, Path(scratch))
        else:
            with alone(folder):
                library = _made(compiler, sources, headers, Path(scratch), folder / file)
        yield library


def _made(compiler: str, sources: Path, headers: Path | None, scratch: Path, target: Path) -> Path:
    """Compile and publish, unless another process did so while this one waited for its turn."""
    if _is_ours(target):
        return target
    library = _compile(compiler, sources, headers, scratch)
    # On a full or read-only disk the private copy will do.
    with contextlib.suppress(OSError):
        library = _publish(library, target)
    return library


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time compile: processes that start together would each spend a minute of all cores.

    The lock is the folder's own and ends with its holder. A disk without locks lets everybody compile.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _fingerprint(compiler: str, sources: Path, headers: Path | None) -> str:
    digest = hashlib.sha256()
    others = [] if headers is None else sorted(headers.glob("*.h"))
    for path in [*sorted(sources.glob("*.[ch]")), *others]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    version = _run([compiler, "--version"])
    digest.update("\0".join((compiler, version, platform.machine(), *FLAGS)).encode())
    return digest.hexdigest()[:24]


def _cache_folder() -> Path | None:
    """The cache folder, made if need be; None where there is no place for one that nobody else can write to."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "lora_kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if _is_ours(folder) else None


def _is_ours(path: Path) -> bool:
    """Whether `path` exists, is ours, and is writable by nobody else: loading a library runs it."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _compile(compiler: str, sources: Path, headers: Path | None, scratch: Path) -> Path:
    """Compile into `scratch`, with OpenMP where the compiler has it."""
    include = () if headers is None else (f"-I{headers}",)
    try:
        return _compile_with(compiler, sources, scratch, ("-fopenmp", *include))
    except BackendError:
        return _compile_with(compiler, sources, scratch, ("-Wno-unknown-pragmas", *include))


def _compile_with(compiler: str, folder: Path, scratch: Path, extra: tuple[str, ...]) -> Path:
    sources = sorted(folder.glob("*.c"))
    objects = [scratch / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(len(sources)) as workers:
        jobs = [
            workers.submit(_run, [compiler, *FLAGS, *extra, "-c", "-o", str(target), str(source)])
            for source, target in zip(sources, objects, strict=True)
        ]
        for job in jobs:
            job.result()
    library = scratch / "library.so"
    _run([compiler, "-shared", *extra, "-o", str(library), *map(str, objects), "-lm"])
    return library


def _publish(library: Path, target: Path) -> Path:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".building-")
    os.close(handle)
    try:
        shutil.copyfile(library, temporary)
        os.chmod(temporary, 0o700)
        os.replace(temporary, target)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise BackendError(f"{command[0]} failed: {lines[0] if lines else f'exit status {done.returncode}'}")
    return done.stdout
