"""Names and request ids: what each side takes, and nothing beside it."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from protocol.errors import ProtocolError
from protocol.names import ModelName, is_digest, is_replica_name, parse_model_name
from protocol.request_ids import request_id_from


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("acme/triage", ModelName("acme", "triage")),
        ("acme/triage@3", ModelName("acme", "triage", 3)),
        ("a/b-c@999999", ModelName("a", "b-c", 999_999)),
        ("a" * 40 + "/" + "0" * 40, ModelName("a" * 40, "0" * 40)),
    ],
)
def test_a_model_name_is_read_and_written_back(text: str, name: ModelName) -> None:
    assert parse_model_name(text) == name and str(name) == text
    assert name.listing == text.partition("@")[0]


@pytest.mark.parametrize(
    "text",
    [
        "acme",
        "acme/",
        "/x",
        "Acme/x",
        "acme/x@",
        "acme/x@0",
        "acme/x@03",
        "acme/x@1234567",
        "-a/b",
        "a-/b",
        "a/b/c",
        "a/b@1@2",
        "a/b@٣",
        "",
        "a/b\n",
        "a" * 41 + "/b",
        None,
        3,
        b"a/b",
    ],
)
def test_anything_else_is_no_model_name(text: object) -> None:
    with pytest.raises(ProtocolError):
        parse_model_name(text)


def test_digests_and_replica_names() -> None:
    assert is_digest("0a" * 32)
    assert not any(is_digest(text) for text in ("0A" * 32, "0a" * 31, "0a" * 32 + "\n", "٠" * 64, ""))
    assert is_replica_name("gpu-1.rack_2") and is_replica_name("r" * 100)
    assert not any(is_replica_name(text) for text in ("", "-r", "../r", "r" * 101, "r\n", "r r"))


@pytest.mark.parametrize("given", ["12345678", "a.b-c_d:"[:7] + "x", "x" * 64])
def test_a_harmless_request_id_of_the_client_is_kept(given: str) -> None:
    assert request_id_from(given) == given


@pytest.mark.parametrize("given", [None, "", "short", "x" * 65, "abcdefg\n", "abcdefgé", "abc defg", "<script>"])
def test_any_other_is_replaced_by_a_new_uuid(given: str | None) -> None:
    made = request_id_from(given)
    assert str(uuid.UUID(made)) == made != request_id_from(given)


def test_the_command_line_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import protocol.names, protocol.encoding, protocol.request_ids;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['protocol']"
