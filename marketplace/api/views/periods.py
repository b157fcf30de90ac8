"""Periods and pages of groups, as queries name them."""

from __future__ import annotations

from rest_framework import serializers

from marketplace.api.place_cursors import MAX_LENGTH


class Period(serializers.Serializer):
    since = serializers.DateTimeField(required=False, help_text="from this moment on")
    until = serializers.DateTimeField(required=False, help_text="before this moment")


class Days(serializers.Serializer):
    since = serializers.DateTimeField(required=False, help_text="from this moment's day (UTC) on, the whole day")
    until = serializers.DateTimeField(
        required=False, help_text="before this moment; a day (UTC) that it is inside of counts as a whole"
    )


class Groups(Days):
    limit = serializers.IntegerField(min_value=1, max_value=1_000, default=100, help_text="most groups in the answer")
    cursor = serializers.CharField(
        max_length=MAX_LENGTH, required=False, default=None, help_text="of `next` of the page before"
    )


class GroupsPage(serializers.Serializer):
    next = serializers.URLField(allow_null=True, help_text="the next page; null: these are the last groups")
