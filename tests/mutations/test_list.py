"""The list of faults fits the tree: a list that nobody plants would rot."""

from __future__ import annotations

from collections import Counter

import pytest

from devstack.state import REPOSITORY
from tests.mutations.faults import ALL, OWN, Fault


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_the_text_of_each_fault_is_in_its_file_exactly_once_and_its_tests_are_there(fault: Fault) -> None:
    text = (REPOSITORY / fault.file).read_text("utf-8")
    assert text.count(fault.old) == 1 and fault.new != fault.old
    compile(text.replace(fault.old, fault.new), fault.file, "exec")
    for folder in fault.tests:
        assert any((REPOSITORY / folder).rglob("test_*.py"))


def test_forty_faults_of_all_parts_have_names_of_their_own() -> None:
    assert max(Counter(fault.name for fault in ALL).values()) == 1
    assert len(OWN) >= 40 and len({fault.tests[0] for fault in OWN}) >= 10
