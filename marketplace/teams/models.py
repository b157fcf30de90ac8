"""Invites, offers of ownership and logos."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.conf import settings
from django.db import models

from marketplace.accounts.models import Membership, Organization
from marketplace.accounts.seals import SealedModel


class Invite(SealedModel):
    """A link by which one address joins an organization. Only the digest of the link's token is stored."""

    SEALED: ClassVar = (
        "id",
        "organization_id",
        "email",
        "role",
        "digest",
        "invited_by_id",
        "expires_at",
        "accepted_at",
        "revoked_at",
    )

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="invites")
    email = models.EmailField(max_length=254)  # lower case
    role = models.CharField(max_length=16, choices=Membership.Role)
    digest = models.BinaryField(max_length=32, unique=True)
    invited_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization", "email"],
                condition=models.Q(accepted_at=None, revoked_at=None),
                name="invite_open_once",
            )
        ]


class InviteMail(models.Model):
    """One mail of an invite that was sent: an organization sends only so many a day."""

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["organization", "sent_at"], name="invite_mails_of_a_day")]


class Transfer(SealedModel):
    """An owner's offer that another member becomes owner instead. It exists until it is accepted or taken back."""

    SEALED: ClassVar = ("organization_id", "offered_by_id", "offered_to_id", "expires_at")

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="transfer")
    offered_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    offered_to = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()


class Logo(models.Model):
    """The picture of an organization, as the platform drew it anew from what was uploaded."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="logo_file")
    digest = models.CharField(max_length=64, db_index=True)  # SHA-256 of the bytes: the address
    content = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)
