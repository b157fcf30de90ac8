"""Prompts that the organization keeps for the playground."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.prompts.services import (
    MAX_MODELS,
    MAX_TEXT,
    Texts,
    delete_prompt,
    keep_prompt,
    open_prompt,
    prompts_of,
)


class PromptSummary(serializers.Serializer):
    id = serializers.UUIDField()
    name = serializers.CharField()
    models = serializers.ListField(
        source="model_names", child=serializers.CharField(), help_text="org/slug, or org/slug@version where pinned"
    )
    created_at = serializers.DateTimeField()


class PromptPage(serializers.Serializer):
    id = serializers.UUIDField(source="row.id")
    name = serializers.CharField(source="row.name")
    models = serializers.ListField(source="row.model_names", child=serializers.CharField())
    message = serializers.CharField(source="texts.message")
    system = serializers.CharField(source="texts.system")
    created_at = serializers.DateTimeField(source="row.created_at")


class PromptsView(ControlView):
    """Kept prompts."""

    scopes: ClassVar = {"GET": ("predict",), "POST": ("predict",)}

    class KeepPrompt(serializers.Serializer):
        name = serializers.CharField(max_length=100)
        message = serializers.CharField(max_length=MAX_TEXT, trim_whitespace=False)
        system = serializers.CharField(max_length=MAX_TEXT, trim_whitespace=False, allow_blank=True, default="")
        models = serializers.ListField(child=serializers.CharField(max_length=128), min_length=1, max_length=MAX_MODELS)

    @extend_schema(operation_id="list_prompts", responses=PromptSummary(many=True))
    def get(self, request: Request) -> Response:
        """The organization's prompts, newest first, without their texts."""
        return self.page(prompts_of(organization=self.organization), PromptSummary, ordering=("-created_at", "-id"))

    @extend_schema(operation_id="keep_prompt", request=KeepPrompt, responses={201: PromptPage})
    def post(self, request: Request) -> Response:
        """Keep a prompt, encrypted; a name is taken once."""
        wanted = self.parse(self.KeepPrompt)
        kept = keep_prompt(
            organization=self.organization,
            by=self.caller.user,
            name=wanted["name"],
            texts=Texts(wanted["message"], wanted["system"]),
            models=wanted["models"],
        )
        return Response(self.show(PromptPage, kept), status=201)


class PromptView(ControlView):
    """One kept prompt."""

    scopes: ClassVar = {"GET": ("predict",), "DELETE": ("predict",)}

    @extend_schema(operation_id="get_prompt", responses=PromptPage)
    def get(self, request: Request, prompt_id: UUID) -> Response:
        """The prompt with its texts."""
        kept = open_prompt(organization=self.organization, prompt_id=prompt_id)
        if kept is None:
            raise not_found("prompt")
        return Response(self.show(PromptPage, kept))

    @extend_schema(operation_id="delete_prompt", responses={204: None})
    def delete(self, request: Request, prompt_id: UUID) -> Response:
        """Delete the prompt."""
        if not delete_prompt(organization=self.organization, prompt_id=prompt_id):
            raise not_found("prompt")
        return Response(status=204)
