"""The vault's refusals. Their messages never hold key material."""

from __future__ import annotations

from marketplace.accounts.errors import Refusal


class VaultError(Refusal):
    """Base of the vault's refusals."""

    code = "vault_error"
    status = 500


class NotBootstrapped(VaultError):
    """The platform's keys do not exist yet: run `manage.py bootstrap_vault`."""

    code = "not_bootstrapped"
    status = 503


class BadRequest(VaultError):
    """A message outside docs/protocol.md."""

    code = "bad_request"
    status = 400


class BodyTooLarge(VaultError):
    """A request body over the limit."""

    code = "body_too_large"
    status = 413


class NotEnrolled(VaultError):
    """A credential, or the name, nonce, signature or terms of a registration, does not hold."""

    code = "not_enrolled"
    status = 401


class NameInUse(VaultError):
    """Another boot of this name is there."""

    code = "name_in_use"
    status = 409


class SessionRefused(VaultError):
    """No living replica has this session: it must register (again)."""

    code = "session_refused"
    status = 401


class WrongBase(VaultError):
    """The replica serves another base model than it says, or than the version needs."""

    code = "wrong_base"
    status = 409


class UnknownPackage(VaultError):
    """No version has this package digest, or its file is gone."""

    code = "unknown_package"
    status = 404


class GrantRefused(VaultError):
    """The URL of a package was not signed here, is older than a minute, or is of another package."""

    code = "grant_refused"
    status = 403


class ReleaseDenied(VaultError):
    """The version's state does not allow its key to leave for this purpose."""

    code = "release_denied"
    status = 403


class NotCleared(ReleaseDenied):
    """The version is not cleared for the checkpoint that this replica serves, and is not being measured there."""

    code = "not_cleared"


class NoDemand(ReleaseDenied):
    """Nobody needs this key on the replica that asks: it is refused, and staff are told."""

    code = "no_demand"


class ReleaseBudgetSpent(ReleaseDenied):
    """The replica was lent as many keys as it may be within an hour: it is refused, and staff are told."""

    code = "release_budget"


class VersionRevoked(ReleaseDenied):
    """The version was retired or revoked."""

    code = "adapter_revoked"


class DataKeyRefused(VaultError):
    """A wrapped data key does not open for this package: it was wrapped for another platform key, version or digest."""

    code = "data_key_refused"
    status = 400


class ChainBroken(VaultError):
    """A creator's release log does not verify: it was changed behind the application's back."""

    code = "chain_broken"
    status = 500


class NoLiveReplica(VaultError):
    """No live replica serves the base model needed."""

    code = "no_live_replica"
    status = 503


class ReplicaCallFailed(VaultError):
    """A replica did not answer an administrative call as the protocol says."""

    code = "replica_call_failed"
    status = 502
