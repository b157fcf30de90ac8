"""The contents of a wheel: everything the product needs, nothing that belongs to a clone."""

from __future__ import annotations

import tomllib

from setuptools import find_namespace_packages

from devstack.state import REPOSITORY

# Folders of the repository that are Python packages and stay out of the wheel.
CLONE_ONLY = {"benchmarks", "devstack", "examples", "tests"}


def test_the_wheel_carries_the_product_and_neither_the_local_stack_nor_tests() -> None:
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    include = pyproject["tool"]["setuptools"]["packages"]["find"]["include"]
    packaged = {name.split(".")[0] for name in find_namespace_packages(str(REPOSITORY), include=include)}
    folders = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    assert packaged == folders - CLONE_ONLY
