"""The description of request bodies that others read is the one of the structs that parse them."""

from __future__ import annotations

from serving.http.describe import FILE, written


def test_the_file_says_what_the_structs_say() -> None:
    assert FILE.read_text() == written(), "run python -m serving.http.describe"
