"""The list of shared places in docs/operations.md is that of the sources: replicas."""

from __future__ import annotations

from tests.protocol.shared_places import bare_pools, declared_in, documented

KNOWN = {
    "serving/__main__.py": "the start of a replica",
    "serving/adapters/workers.py": "loads of adapters, in the order of the scheduler",
    "serving/fleet/hosted.py": "the start of a replica",
    "serving/http/work.py": "the choices of one request",
    "serving/platform/kv_reader.py": "pulls that the platform's tickets allow",
    "serving/platform/kv_source.py": "pulls that the platform's tickets allow",
    "serving/platform/reference.py": "the platform's own check of a new version",
}


def test_the_page_lists_every_shared_pool_of_a_replica_with_its_bounds() -> None:
    declared = declared_in("serving")
    listed = documented()
    assert declared and {name: listed.get(name) for name in declared} == declared


def test_no_thread_or_semaphore_of_a_replica_is_without_a_rule_for_tenants() -> None:
    assert bare_pools("serving") == set(KNOWN)
