"""A replica's identity on its own disk: made once, for its owner alone, and enrolled with a credential."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.replicas import EnrolmentRequest
from serving.errors import ConfigError
from serving.platform.errors import LeaseRefused, VaultUnreachable
from serving.platform.identity import NotEnrolled, ReplicaIdentity


class Vault:
    """The one call of `VaultClient` that an identity makes."""

    def __init__(self) -> None:
        self.asked: list[EnrolmentRequest] = []
        self.problem: Exception | None = None

    def enrol(self, request: EnrolmentRequest) -> None:
        self.asked.append(request)
        if self.problem is not None:
            raise self.problem


def test_the_identity_outlives_the_process_and_the_credential_does_not(tmp_path: Path) -> None:
    credential, vault = tmp_path / "credential", Vault()
    credential.write_text("irc_single-use-credential\n")
    first = ReplicaIdentity(tmp_path / "identity", "r1", credential)
    first.enrol(vault)  # type: ignore[arg-type]
    assert [request.credential for request in vault.asked] == ["irc_single-use-credential"]
    assert not credential.exists()
    second = ReplicaIdentity(tmp_path / "identity", "r1", credential)
    second.enrol(vault)  # type: ignore[arg-type]
    assert len(vault.asked) == 1
    assert second.sign(b"m") == first.sign(b"m")
    assert (tmp_path / "identity" / "identity.key").stat().st_mode & 0o777 == 0o600


def test_a_lost_answer_is_asked_for_again_with_the_same_identity(tmp_path: Path) -> None:
    credential, vault = tmp_path / "credential", Vault()
    credential.write_text("irc_single-use-credential")
    vault.problem = VaultUnreachable("lost")
    with pytest.raises(VaultUnreachable):
        ReplicaIdentity(tmp_path / "identity", "r1", credential).enrol(vault)  # type: ignore[arg-type]
    assert credential.exists()
    vault.problem = None
    ReplicaIdentity(tmp_path / "identity", "r1", credential).enrol(vault)  # type: ignore[arg-type]
    assert len({request.identity_public_key for request in vault.asked}) == 1


def test_a_refused_credential_leaves_the_replica_a_stranger(tmp_path: Path) -> None:
    credential, vault = tmp_path / "credential", Vault()
    credential.write_text("irc_single-use-credential")
    vault.problem = LeaseRefused("not_enrolled", "spent")
    identity = ReplicaIdentity(tmp_path / "identity", "r1", credential)
    for _ in range(2):
        with pytest.raises(LeaseRefused):
            identity.enrol(vault)  # type: ignore[arg-type]
    assert len(vault.asked) == 2


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_without_a_credential_an_operator_is_told_how_to_make_one(tmp_path: Path, content: str | None) -> None:
    credential = tmp_path / "credential"
    if content is not None:
        credential.write_text(content)
    identity = ReplicaIdentity(tmp_path / "identity", "r1", credential)
    with pytest.raises(NotEnrolled, match="issue_replica_credential r1"):
        identity.enrol(Vault())  # type: ignore[arg-type]


def test_an_identity_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    ReplicaIdentity(tmp_path, "r1")
    key = tmp_path / "identity.key"
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="mode 0600"):
        ReplicaIdentity(tmp_path, "r1")
    key.chmod(0o600)
    with key.open("ab") as file:
        file.write(os.urandom(1))
    with pytest.raises(ConfigError, match="32 bytes"):
        ReplicaIdentity(tmp_path, "r1")


def test_a_credential_is_shown_in_no_representation(tmp_path: Path) -> None:
    credential, vault = tmp_path / "credential", Vault()
    credential.write_text("irc_single-use-credential")
    ReplicaIdentity(tmp_path / "identity", "r1", credential).enrol(vault)  # type: ignore[arg-type]
    assert "irc_" not in repr(vault.asked[0])
