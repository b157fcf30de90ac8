"""A version's way to market and off it again: upload, verification, publication, withdrawal.

The one package that writes to `catalog` and `vault` together; neither of the two knows it.
"""

from marketplace.publishing.uploads import (
    append_package_chunk,
    complete_version,
    expire_abandoned_uploads,
    start_version,
    upload_offset,
)
from marketplace.publishing.versions import publish_version, record_verification, retire_version, revoke_version

__all__ = [
    "append_package_chunk",
    "complete_version",
    "expire_abandoned_uploads",
    "publish_version",
    "record_verification",
    "retire_version",
    "revoke_version",
    "start_version",
    "upload_offset",
]
