"""Users, organizations and API keys.

Both creators and consumers are organizations; a user acts for one through a membership.
"""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.contrib.postgres.fields import ArrayField
from django.core.validators import RegexValidator
from django.db import models, transaction
from django.db.models.functions import Lower

from marketplace.accounts.seals import SealedModel, SealedQuerySet
from protocol.names import SLUG

# \Z, because $ would also match before a final newline.
slug_validator = RegexValidator(rf"\A{SLUG}\Z", "1 to 40 lower-case letters, digits and inner hyphens")


class UserManager(BaseUserManager.from_queryset(SealedQuerySet)):  # type: ignore[misc]
    """Users are known by e-mail alone."""

    def create_user(self, email: str, password: str | None = None, *, verified: bool = True, **extra: Any) -> User:
        """Create a user for an operator's command, which vouches for the address. People sign up by the form."""
        from allauth.account.models import EmailAddress  # a model of an app that refers to this one

        with transaction.atomic(using=self._db):
            user: User = self.model(email=self.normalize_email(email).lower(), **extra)
            user.set_password(password)
            user.save(using=self._db)
            EmailAddress.objects.create(user=user, email=user.email, primary=True, verified=verified)
        return user

    def create_superuser(self, email: str, password: str | None = None, **extra: Any) -> User:
        return self.create_user(email, password, is_staff=True, is_superuser=True, **extra)


class User(SealedModel, AbstractBaseUser, PermissionsMixin):
    SEALED: ClassVar = ("id", "email", "password", "is_active", "is_staff", "is_superuser")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(max_length=254, unique=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    date_joined = models.DateTimeField(auto_now_add=True)

    objects: ClassVar = UserManager()
    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(Lower("email"), name="user_email_unique_any_case")]


class Organization(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(max_length=40, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)
    members = models.ManyToManyField(User, through="Membership", related_name="organizations")
    # The organization that brought this one, which earns on what this one spends until then. A trigger keeps both.
    referred_by = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="referrals")
    referral_ends_at = models.DateTimeField(null=True, blank=True)
    logo = models.CharField(max_length=64, blank=True, default="", db_default="")  # the digest of `teams.Logo`
    # Members without a second factor can do nothing in it but set one up; keys go on working.
    requires_second_factor = models.BooleanField(default=False, db_default=False)
    # Staff stopped it (`accounts.suspension`); the reason is what its members read.
    suspended_at = models.DateTimeField(null=True, blank=True)
    suspension_reason = models.CharField(max_length=500, blank=True, default="", db_default="")

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(referred_by__isnull=True, referral_ends_at__isnull=True)
                | models.Q(referred_by__isnull=False, referral_ends_at__isnull=False),
                name="organization_referral_has_an_end",
            ),
            models.CheckConstraint(
                condition=models.Q(suspended_at__isnull=True) | ~models.Q(suspension_reason=""),
                name="organization_suspension_has_a_reason",
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class FormerName(models.Model):
    """A name that an organization gave up. It leads to the organization, and no other gets it, until `kept_until`."""

    slug = models.CharField(primary_key=True, max_length=40, validators=[slug_validator])
    # Null: the organization was erased. A mark of the name (`services.mark_of`) leads nowhere, and keeps it taken.
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, null=True, related_name="former_names")
    given_up_at = models.DateTimeField(auto_now_add=True)
    kept_until = models.DateTimeField()


class Membership(SealedModel):
    SEALED: ClassVar = ("organization_id", "user_id", "role")

    class Role(models.TextChoices):
        OWNER = "owner"
        ADMIN = "admin"
        DEVELOPER = "developer"
        BILLING = "billing"
        VIEWER = "viewer"

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role, default=Role.OWNER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["organization", "user"], name="membership_unique")]


class ApiKey(SealedModel):
    """`ik_<prefix>_<secret>`: the prefix finds the row, an HMAC of the key proves it. Shown once, never stored.

    A key and its rotations are one line: a budget belongs to the line, which is known by its first key.
    """

    SEALED: ClassVar = (
        "id",
        "organization_id",
        "prefix",
        "digest",
        "scopes",
        "created_by_id",
        "expires_at",
        "revoked_at",
        "first_key_id",
        "guards",
        "allowed_networks",
        "allowed_models",
    )

    class Scope(models.TextChoices):
        PREDICT = "predict"  # /v1: spend the organization's money on predictions
        PUBLISH = "publish"  # /api/v1: upload, price, publish and retire models
        ACCOUNT = "account"  # /api/v1: read wallet and usage, manage keys, top up
        READ = "read"  # /api/v1: read usage, budgets, models and how they are used; change nothing

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, unique=True)
    digest = models.BinaryField(max_length=32)  # HMAC-SHA256(API_KEY_PEPPER, whole key)
    scopes = ArrayField(models.CharField(max_length=16, choices=Scope))
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    first_key = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")  # null: this one
    # `marketplace.guards.policies`: kind → mask or refuse
    guards = models.JSONField(default=dict, db_default={}, blank=True)
    # `key_limits`: networks that it is used from and models that it may call; empty: all
    allowed_networks = ArrayField(models.CharField(max_length=43), default=list, db_default=[], blank=True)
    allowed_models = ArrayField(models.CharField(max_length=81), default=list, db_default=[], blank=True)

    @property
    def line_id(self) -> uuid.UUID:
        """Return the id of the line's first key."""
        return self.first_key_id or self.pk


class RowSeal(models.Model):
    """The seal of one row of another package's table (`seals.beside`)."""

    id = models.BigAutoField(primary_key=True)
    table = models.CharField(max_length=60)
    row_id = models.CharField(max_length=40)
    seal = models.BinaryField(max_length=32)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["table", "row_id"], name="row_seal_unique")]


class FeatureSwitch(models.Model):
    """The reach that staff gave one of the declared features (`features.py`); without a row it is on for everybody."""

    name = models.CharField(max_length=40, primary_key=True)
    percent = models.PositiveSmallIntegerField()  # of the organizations
    on_for = ArrayField(models.UUIDField(), default=list, blank=True)  # organizations, whatever the percentage says
    off_for = ArrayField(models.UUIDField(), default=list, blank=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(percent__lte=100), name="feature_percent_is_a_share")
        ]


class AuditEntry(models.Model):
    """One act in an organization's name. Append-only: `marketplace.accounts.audit` writes, nothing updates."""

    id = models.BigAutoField(primary_key=True)
    # Without a constraint: checking it would lock the organization's row after rows that are locked later in the order.
    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="audit_entries", db_constraint=False
    )
    # No foreign keys: an entry outlives whoever acted.
    user_id = models.UUIDField(null=True, blank=True)
    api_key_id = models.UUIDField(null=True, blank=True)
    as_staff = models.BooleanField(default=False)
    act = models.CharField(max_length=60)
    subject = models.CharField(max_length=200, blank=True)
    data = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["organization", "-created_at", "-id"], name="audit_newest_first"),
            models.Index(fields=["created_at"], name="audit_by_day"),  # for the seals
            models.Index(
                fields=["-created_at", "-id"], condition=models.Q(as_staff=True), name="audit_staff_newest_first"
            ),
        ]


class AuditSeal(models.Model):
    """One day of one log under a digest that covers the day before too. Append-only: `audit_seals` writes.

    Without an organization it seals all organizations' seals of the day: the platform's own chain.
    """

    id = models.BigAutoField(primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, null=True, related_name="audit_seals")
    day = models.DateField()
    entries = models.PositiveIntegerField()  # of the platform's chain: seals
    digest = models.BinaryField(max_length=32)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "day"], nulls_distinct=False, name="audit_seal_once_a_day")
        ]
