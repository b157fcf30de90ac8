"""The table of kept prompts."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from marketplace.accounts.models import Organization, User


class Prompt(models.Model):
    """A message, its system message and the models that it is for. The texts are encrypted with the owner's key."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="prompts")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    name = models.CharField(max_length=100)
    sealed = models.BinaryField()  # JSON {"system", "message"}, sealed for this row
    model_names = ArrayField(models.CharField(max_length=128))  # org/slug, or org/slug@3 where it is pinned
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "name"], name="prompt_name_unique_in_organization")
        ]
