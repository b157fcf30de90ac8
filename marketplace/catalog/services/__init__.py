"""Writes. `listings`: models and prices; `versions`: a version's life; `uploads`: its package; `bases`: base models."""

from marketplace.catalog.services.bases import list_base_model, register_base, register_base_directory
from marketplace.catalog.services.listings import create_model, record_evaluation, set_price, update_model
from marketplace.catalog.services.uploads import (
    append_package_chunk,
    complete_version,
    expire_abandoned_uploads,
    upload_offset,
)
from marketplace.catalog.services.versions import (
    publish_version,
    record_verification,
    register_signing_key,
    retire_version,
    revoke_version,
    start_version,
)

__all__ = [
    "append_package_chunk",
    "complete_version",
    "create_model",
    "expire_abandoned_uploads",
    "list_base_model",
    "publish_version",
    "record_evaluation",
    "record_verification",
    "register_base",
    "register_base_directory",
    "register_signing_key",
    "retire_version",
    "revoke_version",
    "set_price",
    "start_version",
    "update_model",
    "upload_offset",
]
