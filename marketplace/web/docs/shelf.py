"""The pages of `docs/` that stand on the site, by section and in the order to read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings

SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Start", ("start-consumer", "start-creator", "start-operator")),
    (
        "Calling models",
        (
            *("api", "fields", "beams", "responses", "runs", "agents", "batches", "keys", "prices", "receipts"),
            *("budgets", "replays", "guards", "trials", "promises", "search", "alerts", "webhooks", "errors"),
        ),
    ),
    (
        "Selling models",
        (
            *("cli", "contract", "converting", "listings", "publishing", "versions", "evals", "ranking", "in-use"),
            *("copying", "attacks", "payouts", "custody"),
        ),
    ),
    (
        "Account and data",
        ("accounts", "organizations", "payments", "invoices", "retention", "security", "terms", "privacy"),
    ),
    (
        "Running the platform",
        (
            *("operations", "metrics", "tracing", "serving", "scale", "prefill-decode", "models", "quantized-bases"),
            *("bases", "kv-memory", "gpu", "tensor-parallel", "capacity", "faults"),
        ),
    ),
    (
        "How it is built",
        (
            *("structure", "words", "protocol", "package-format", "ledger", "throughput", "scheduling"),
            *("speculation", "adapter-memory", "figures"),
        ),
    ),
)

EXAMPLE_SITE = "https://intarsia.example"  # in the files; readers of the site see its own address


@dataclass(frozen=True, slots=True)
class Page:
    """One page: `name` is its address below /docs and its file's stem."""

    name: str
    section: str
    title: str
    markdown: str

    @property
    def label(self) -> str:
        """The title as menus have it."""
        return self.title.partition(":")[0]


def folder() -> Path:
    """Return where the files lie, beside the packages."""
    return Path(settings.BASE_DIR) / "docs"


@cache
def shelf() -> dict[str, Page]:
    """Return every page of the site by name, in order. Read once: the files come with the code."""
    pages = {}
    for section, names in SECTIONS:
        for name in names:
            text = (folder() / f"{name}.md").read_text().replace(EXAMPLE_SITE, settings.PUBLIC_URL)
            first, _, rest = text.partition("\n")
            pages[name] = Page(name, section, first.removeprefix("# ").strip().replace("`", ""), rest.lstrip())
    return pages


def neighbours(name: str) -> tuple[Page | None, Page | None]:
    """Return the pages before and after this one."""
    pages = list(shelf().values())
    at = next(index for index, page in enumerate(pages) if page.name == name)
    return (pages[at - 1] if at else None), (pages[at + 1] if at + 1 < len(pages) else None)
