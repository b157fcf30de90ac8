"""Periods and pages of groups, as queries name them."""

from __future__ import annotations

from rest_framework import serializers


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
    offset = serializers.IntegerField(
        min_value=0, max_value=1_000_000, default=0, help_text="groups to leave out: `next_offset` of the page before"
    )
