"""Forms of a listing: the creator's words, a logo, a new listing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, ClassVar

from django import forms

from marketplace.catalog.licences import KNOWN, MAX_LICENCE_TEXT, OWN
from marketplace.catalog.models import BaseModel, Model
from marketplace.catalog.services.listings import MAX_EXAMPLE_LENGTH, MAX_EXAMPLES, ExampleMessage, ListingText
from marketplace.web.forms import PlainForm

_LICENCES = [("", "None named"), *((one.id, one.name) for one in KNOWN.values()), (OWN, "My own text, below")]
_ROLES = [("user", "Prompt"), ("system", "System message"), ("assistant", "Answer")]
_VISIBILITIES = [
    ("public", "Public: in the catalogue, for everybody"),
    ("unlisted", "Unlisted: for those who know its name"),
    ("private", "Private: for your organization"),
]


class LinesField(forms.CharField):
    """Text of several lines; a browser sends CR LF, and what is kept has LF, as the API's callers send it."""

    def to_python(self, value: Any) -> str:
        """Return the text with LF alone."""
        return str(super().to_python(value)).replace("\r\n", "\n").replace("\r", "\n")


def _area(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows})


class ListingForm(PlainForm):
    """Everything that a listing says, with the time of the listing that was read; example prompts have a row each."""

    FIELD_NAMES: ClassVar = {"example_messages": "example_0_content", "updated_at": "seen"}
    GROUPS: ClassVar = (
        ("What it is", ("title", "summary", "industry", "tags", "visibility")),
        ("Licence", ("licence", "licence_text", "licence_required")),
        ("Who may call it", ("gated",)),
    )

    seen = forms.CharField(max_length=40, widget=forms.HiddenInput)
    title = forms.CharField(label="Title", max_length=120)
    summary = LinesField(
        label="Summary", max_length=280, required=False, widget=_area(2), help_text="A sentence for search results."
    )
    industry = forms.CharField(
        label="Industry", max_length=40, required=False, help_text="One word, such as finance or health."
    )
    tags = forms.CharField(
        label="Tags", max_length=330, required=False, help_text="Up to 10, with commas, of 30 characters each."
    )
    visibility = forms.ChoiceField(label="Visibility", choices=_VISIBILITIES)
    card_markdown = LinesField(
        label="Model card", max_length=100_000, required=False, strip=False, widget=_area(16), help_text="Markdown."
    )
    licence = forms.ChoiceField(label="Licence", choices=_LICENCES, required=False)
    licence_text = LinesField(
        label="Text of your own licence",
        max_length=MAX_LICENCE_TEXT,
        required=False,
        widget=_area(6),
        help_text=f"At most {MAX_LICENCE_TEXT:,} characters, for “my own text” alone.",
    )
    licence_required = forms.BooleanField(
        label="Customers accept the licence before their first call",
        required=False,
        help_text="Once for each organization. When you change the text, they are asked again before their next call.",
    )
    gated = forms.BooleanField(
        label="Customers ask me for access first",
        required=False,
        help_text="You learn the name and the reason of whoever asks, and can take access back.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for number in range(MAX_EXAMPLES):
            role = forms.ChoiceField(label=f"Kind of example {number + 1}", choices=_ROLES, required=False)
            content = LinesField(
                label=f"Example {number + 1}",
                max_length=MAX_EXAMPLE_LENGTH,
                required=False,
                strip=False,
                widget=_area(2),
            )
            self.fields[f"example_{number}_role"] = role
            self.fields[f"example_{number}_content"] = content

    @classmethod
    def initial_of(cls, model: Model) -> dict[str, Any]:
        """Return what the form of a listing starts with."""
        names = [name for _, names in cls.GROUPS for name in names if name != "tags"]
        initial = {name: getattr(model, name) for name in (*names, "card_markdown")}
        initial |= {"tags": ", ".join(model.tags), "seen": model.updated_at.isoformat()}
        for number, message in enumerate(model.example_messages[:MAX_EXAMPLES]):
            initial |= {f"example_{number}_{part}": message.get(part, "") for part in ("role", "content")}
        return initial

    def clean_seen(self) -> datetime:
        """Return the `updated_at` of the listing that was read."""
        try:
            seen = datetime.fromisoformat(self.cleaned_data["seen"])
        except ValueError:
            seen = None
        if seen is None or seen.tzinfo is None:
            raise forms.ValidationError("Load the page again.")
        return seen

    def clean_tags(self) -> list[str]:
        """Return the tags, without blanks and empty ones."""
        tags = [tag.strip() for tag in self.cleaned_data["tags"].split(",")]
        return [tag for tag in tags if tag]

    @property
    def groups(self) -> Iterator[tuple[str, list[forms.BoundField]]]:
        """Yield the headings with their fields; card and examples have places of their own."""
        for heading, names in self.GROUPS:
            yield heading, [self[name] for name in names]

    @property
    def examples(self) -> Iterator[tuple[forms.BoundField, forms.BoundField]]:
        """Yield the role and the text of each example."""
        for number in range(MAX_EXAMPLES):
            yield self[f"example_{number}_role"], self[f"example_{number}_content"]

    @property
    def text(self) -> ListingText:
        """Return the listing that was written."""
        data = self.cleaned_data
        names = [name for _, names in self.GROUPS for name in names]
        rows = [(data[f"example_{n}_role"], data[f"example_{n}_content"]) for n in range(MAX_EXAMPLES)]
        return ListingText(
            **{name: data[name] for name in (*names, "card_markdown")},
            example_messages=[ExampleMessage(role or "user", content) for role, content in rows if content.strip()],
        )


class NewListingForm(PlainForm):
    """The beginning of a listing; the rest is written on its page."""

    title = forms.CharField(label="Title", max_length=120)
    slug = forms.SlugField(
        label="Name",
        max_length=40,
        help_text="Lower-case letters, digits and hyphens. Customers call it by this name; it stays.",
    )
    base = forms.ChoiceField(label="Base model", help_text="The one that your adapter was trained for.")
    visibility = forms.ChoiceField(label="Visibility", choices=_VISIBILITIES)

    def __init__(self, *args: Any, bases: list[BaseModel], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(one.fingerprint, f"{one.name} ({one.fingerprint[:8]})") for one in bases]
        self.fields["base"].choices = choices  # type: ignore[attr-defined]
