"""A Chromium for the browser tests: `python -m tests.browser` finds or installs one.

It installs Debian's package where it may; elsewhere it unpacks the same packages into the state folder, which needs no
rights at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.state import State
from tests.package_folder import MissingToolError, installing

NAMES = ("chromium", "chromium-browser", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")


def find_browser() -> str:
    """Return the path of a Chromium to drive, installed now if there is none. Raises MissingToolError."""
    if found := _found():
        return found
    with installing("chromium"):
        if not _found():
            install_browser()
    if found := _found():
        return found
    raise MissingToolError("the browser tests need Chromium, and installing it left none")


def _found() -> str | None:
    for name in NAMES:
        if path := shutil.which(name):
            return path
    unpacked = _unpacked_launcher()
    return str(unpacked) if unpacked.exists() else None


def _unpacked_launcher() -> Path:
    return State.open().root / "chromium" / "chromium"


def _run(*command: str, **extra: object) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, **extra)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise LocalStackError(f"`{' '.join(command[:4])} …` failed:\n{(done.stderr or done.stdout)[-1500:]}")


def install_browser() -> None:
    """Install Chromium. Raises LocalStackError that says what to install by hand."""
    if shutil.which("apt-get") is None:
        raise LocalStackError("the browser tests need Chromium.\nInstall it with your system's package manager.")
    print("  browser for the tests: Debian's chromium …", flush=True)
    if os.geteuid() == 0 or _may_sudo():
        _install_system_wide()
    else:
        _unpack_without_rights()


def _may_sudo() -> bool:
    return bool(shutil.which("sudo")) and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0


def _install_system_wide() -> None:
    apt = ["apt-get"] if os.geteuid() == 0 else ["sudo", "-n", "apt-get"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(*apt, "update", "-q", env=environment)
    _run(*apt, "install", "-y", "-q", "--no-install-recommends", *PACKAGES, env=environment)


def _unpack_without_rights() -> None:
    """Resolve and download the packages with apt's own lists in our folder, then unpack them there."""
    root = _unpacked_launcher().parent
    lists = root / "lists"
    cache = root / "cache"
    files = root / "root"
    for folder in (lists / "partial", cache / "archives" / "partial", files):
        folder.mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "Debug::NoLocking=1", "-q"]
    _run("apt-get", *options, "update")
    _run("apt-get", *options, "install", "-y", "--download-only", "--no-install-recommends", *PACKAGES)
    for package in sorted((cache / "archives").glob("*.deb")):
        _run("dpkg-deb", "-x", str(package), str(files))
    shutil.rmtree(cache)
    shutil.rmtree(lists)
    libraries = ":".join(str(files / part) for part in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib"))
    launcher = _unpacked_launcher()
    launcher.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{files}/usr/lib/chromium/chromium" "$@"\n')
    launcher.chmod(0o755)


def main() -> int:
    try:
        find_browser()
    except LocalStackError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
