"""The sealed package format: write, read, verify; key wrapping, leases, the release log, strict intake.

Usable alone. Imports the standard library, `cryptography` and `numpy` alone. Format: docs/package-format.md.
"""

from sealed_weights.contract import Contract, ContractExample, parse_contract, read_contract
from sealed_weights.errors import (
    AuthenticationError,
    CommitmentError,
    FormatError,
    IntakeError,
    KeyFileError,
    MemoryNotLocked,
    SealError,
    SignatureError,
)
from sealed_weights.files import OpenFile, open_regular
from sealed_weights.header import PackageHeader, read_header
from sealed_weights.intake.adapter_config import AdapterConfig, parse_adapter_config
from sealed_weights.intake.base_model import BaseSpec, base_fingerprint
from sealed_weights.intake.check import AdapterLayout, AdapterSummary, check_adapter, check_layout, check_patterns
from sealed_weights.intake.safetensors_header import TensorInfo, parse_safetensors_header
from sealed_weights.intake.values import MAX_FACTOR_NORM, MAX_UPDATE_NORM
from sealed_weights.keys import (
    FileKeyProvider,
    KeyProvider,
    create_creator_kek,
    generate_key,
    open_creator_kek,
    unwrap_key,
    wrap_key,
)
from sealed_weights.lease import LeaseGrant, ReplicaKeypair, SealedLease, open_lease, seal_lease
from sealed_weights.opened import OpenedPackage, PackageOpening, open_package, open_rows, over_chunks
from sealed_weights.package import SealedPackage, package_digest, seal_package, seal_rows, verify_signature
from sealed_weights.reference import Reference, ReferenceAnswer, parse_reference, read_reference, source_digest
from sealed_weights.release_log import (
    GENESIS_HASH,
    ReleaseEntry,
    SignedCheckpoint,
    sign_checkpoint,
    verify_chain,
)
from sealed_weights.secret_memory import wipe
from sealed_weights.signing import CreatorIdentity
from sealed_weights.wrap import PlatformKeypair, fingerprint, unwrap_dek_from_creator, wrap_dek_for_platform

__all__ = [
    "GENESIS_HASH",
    "MAX_FACTOR_NORM",
    "MAX_UPDATE_NORM",
    "AdapterConfig",
    "AdapterLayout",
    "AdapterSummary",
    "AuthenticationError",
    "BaseSpec",
    "CommitmentError",
    "Contract",
    "ContractExample",
    "CreatorIdentity",
    "FileKeyProvider",
    "FormatError",
    "IntakeError",
    "KeyFileError",
    "KeyProvider",
    "LeaseGrant",
    "MemoryNotLocked",
    "OpenFile",
    "OpenedPackage",
    "PackageHeader",
    "PackageOpening",
    "PlatformKeypair",
    "Reference",
    "ReferenceAnswer",
    "ReleaseEntry",
    "ReplicaKeypair",
    "SealError",
    "SealedLease",
    "SealedPackage",
    "SignatureError",
    "SignedCheckpoint",
    "TensorInfo",
    "base_fingerprint",
    "check_adapter",
    "check_layout",
    "check_patterns",
    "create_creator_kek",
    "fingerprint",
    "generate_key",
    "open_creator_kek",
    "open_lease",
    "open_package",
    "open_regular",
    "open_rows",
    "over_chunks",
    "package_digest",
    "parse_adapter_config",
    "parse_contract",
    "parse_reference",
    "parse_safetensors_header",
    "read_contract",
    "read_header",
    "read_reference",
    "seal_lease",
    "seal_package",
    "seal_rows",
    "sign_checkpoint",
    "source_digest",
    "unwrap_dek_from_creator",
    "unwrap_key",
    "verify_chain",
    "verify_signature",
    "wipe",
    "wrap_dek_for_platform",
    "wrap_key",
]
