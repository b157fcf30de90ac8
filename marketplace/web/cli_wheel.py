"""The creator's command as a wheel, built from the installed packages: what a platform offers is what it runs with."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "intarsia"
PACKAGES = ("creator_cli", "peft_bridge", "protocol", "sealed_weights")
EXTRAS = ("convert", "mcp")  # of the command; the others are the platform's
ENTRY_POINTS = "[console_scripts]\nintarsia = creator_cli.main:main\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same wheel from the same files, byte by byte


@functools.cache
def wheel_name() -> str:
    """Return the file name, which tells pip name and version."""
    return f"{DISTRIBUTION}-{metadata.version(DISTRIBUTION)}-py3-none-any.whl"


@functools.cache
def build_wheel() -> bytes:
    """Return the wheel of the command alone, with the dependencies that the command needs."""
    info = f"{DISTRIBUTION}-{metadata.version(DISTRIBUTION)}.dist-info"
    files = dict(_sources())
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: intarsia\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None, f"{package} is not installed"
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.suffix == ".py" or path.name == "py.typed":
                yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _metadata() -> str:
    found = metadata.metadata(DISTRIBUTION)
    declared = metadata.requires(DISTRIBUTION) or []
    needs = [line for line in declared if "extra ==" not in line]
    of_extras = {name: [line for line in declared if f'extra == "{name}"' in line] for name in EXTRAS}
    lines = ["Metadata-Version: 2.1", f"Name: {DISTRIBUTION}", f"Version: {found['Version']}"]
    lines.append(f"Requires-Python: {found['Requires-Python']}")
    lines += [f"Requires-Dist: {need}" for need in needs]
    for name, more in of_extras.items():
        lines += [f"Provides-Extra: {name}", *(f"Requires-Dist: {need}" for need in more)]
    return "\n".join([*lines, ""])


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
