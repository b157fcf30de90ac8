"""The list of shared places in docs/operations.md is that of the sources: web processes and workers."""

from __future__ import annotations

from tests.protocol.shared_places import bare_pools, declared_in, documented

# Pools that are no tenant's way to another: each with the rule that bounds what one of them takes.
KNOWN = {
    "marketplace/alerts/delivery.py": "one thread for each of its shared places",
    "marketplace/calls/caller.py": "the calls of one run, made by its own worker task",
    "marketplace/catalog/search/meaning.py": "the search does without where it is busy; callers have shares of pages",
    "marketplace/gateway/asks.py": "the predictions of one request",
    "marketplace/jobs/running.py": "jobs.fairness gives each place to the organization with the fewest calls",
    "marketplace/vault/tasks.py": "the platform's own calls to replicas",
}


def test_the_page_lists_every_shared_pool_of_the_platform_with_its_bounds() -> None:
    declared = declared_in("marketplace", "billing")
    listed = documented()
    assert declared and {name: listed.get(name) for name in declared} == declared
    assert all(bound.share <= bound.places for bound in declared.values())


def test_no_thread_or_semaphore_of_the_platform_is_without_a_rule_for_tenants() -> None:
    assert bare_pools("marketplace", "billing") == set(KNOWN)
