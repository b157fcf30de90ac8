"""Every write of this package by one name: the way of a version to market, and what people decide about it."""

from marketplace.publishing.appeals import appeal_review
from marketplace.publishing.decisions import approve_review, pull_from_sale, refuse_review
from marketplace.publishing.endings import announce_end, cancel_end
from marketplace.publishing.gate import change_listing, publish_version
from marketplace.publishing.listings import create_listing, set_logo
from marketplace.publishing.reports import report_model
from marketplace.publishing.rollouts import roll_out
from marketplace.publishing.uploads import (
    append_package_chunk,
    complete_version,
    expire_abandoned_uploads,
    start_version,
    upload_offset,
)
from marketplace.publishing.versions import change_changelog, record_verification
from marketplace.publishing.withdrawal import retire_version, revoke_version

__all__ = [
    "announce_end",
    "appeal_review",
    "append_package_chunk",
    "approve_review",
    "cancel_end",
    "change_changelog",
    "change_listing",
    "complete_version",
    "create_listing",
    "expire_abandoned_uploads",
    "publish_version",
    "pull_from_sale",
    "record_verification",
    "refuse_review",
    "report_model",
    "retire_version",
    "revoke_version",
    "roll_out",
    "set_logo",
    "start_version",
    "upload_offset",
]
