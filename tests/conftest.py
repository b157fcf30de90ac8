"""Fixtures that several packages' tests share. The databases come from tests/services.py."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.package_folder import MissingToolError
from tests.services import MISSING


def pytest_report_header() -> str | None:
    """Say why most tests are not there, on a machine that has no databases."""
    if not MISSING:
        return None
    return f"no databases (missing: {', '.join(MISSING)}): files with GPU tests are collected, and no others"


def pytest_configure() -> None:
    """Bound no generated example by the clock: beside other work any of them may take longer than Hypothesis allows."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # a machine for GPU tests alone
        return
    settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what has no GPU tests where the databases' packages are missing: most could not be imported."""
    if not MISSING:
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return None if any("pytest.mark.gpu" in file.read_text("utf-8") for file in files) else True


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """No connection pool in tests: a pooled connection would keep the test database from being dropped."""
    from django.conf import settings

    from tests.database import log_in_as_the_administrator

    settings.DATABASES["default"]["OPTIONS"].pop("pool", None)
    log_in_as_the_administrator()


@pytest.fixture(scope="session")
def _migrated_once(django_db_modify_db_settings: None, django_db_blocker: Any) -> None:
    """One worker migrates a database, of which those of all others are copies."""
    from tests.database import copy_one_template

    with django_db_blocker.unblock():
        copy_one_template()


@pytest.fixture(scope="session")
def django_db_setup(_migrated_once: None, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Tests act as the application's database role once the test database is there (tests/database.py)."""
    from tests.database import act_as_the_application

    with django_db_blocker.unblock(), act_as_the_application():
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """One round of hashing for each password that tests make: a million of them were a third of the suite's time.

    Servers that tests start as processes of their own hash as the platform does.
    """
    if "django" not in sys.modules:
        yield
        return
    from django.contrib.auth.hashers import PBKDF2PasswordHasher

    with mock.patch.object(PBKDF2PasswordHasher, "iterations", 1):
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_tls_context() -> Iterator[None]:
    """One TLS context for all clients of httpx with its defaults: to read all CA certificates takes each 65 ms."""
    try:
        from httpx._transports import default
    except ImportError:
        yield
        return
    make = default.create_ssl_context
    made: dict[tuple[Any, ...], Any] = {}

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
        if verify is not True or cert is not None:
            return make(verify=verify, cert=cert, trust_env=trust_env)
        files = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if trust_env else ()
        if files not in made:
            made[files] = make(trust_env=trust_env)
        return made[files]

    with mock.patch.object(default, "create_ssl_context", create):
        yield


@pytest.fixture(scope="session")
def warm_finder() -> Iterator[Any]:
    """One process that finds personal data, for all tests of a worker: presidio takes seconds to import."""
    from marketplace.guards.finder import Finder

    one = Finder()
    yield one
    one.close()


@pytest.fixture(autouse=True)
def _own_state(request: pytest.FixtureRequest) -> None:
    """Let no rate limit, cached lookup, database role or lost connection leak from one database test into the next."""
    uses_database = {"db", "transactional_db", "live_server"} & set(request.fixturenames)
    if uses_database or request.node.get_closest_marker("django_db"):
        from django.core.cache import cache

        from tests.database import renew_connection

        cache.clear()
        renew_connection()


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage while files are imported: looking for it was a third of that time, in every worker."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again."""
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `gpu` run where CUDA is present; elsewhere they are left out and counted as deselected."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_cuda():
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in on_gpu]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip what needs a tool that cannot be installed, with the reason."""
    try:
        yield
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip what needs a tool that cannot be installed, with the reason."""
    try:
        yield
    except MissingToolError as error:
        pytest.skip(str(error))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
