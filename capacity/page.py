"""A plan as one HTML file, for people who read and do not run: pictures inside, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from capacity.charts import STYLE

_PAGE_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}table{border-collapse:collapse;width:100%;font-size:.85rem}
th,td{text-align:left;padding:.3rem .5rem;border-bottom:1px solid #d0d5dd;vertical-align:top}
.note{border-left:4px solid #b54708;padding:.2rem .8rem;background:#fff6ed;margin:.5rem 0}
.lead{font-size:1.1rem}.tag{font-size:.75rem;border:1px solid #98a2b3;border-radius:1rem;padding:0 .5rem}
code{font-size:.85rem}summary{cursor:pointer;color:#475467}svg{width:100%;height:auto}
@media (prefers-color-scheme:dark){body{color:#e6e9ef;background:#12161c}.note{background:#2b1d0e}
th,td{border-color:#344054}summary{color:#98a2b3}}
@media print{details{display:block}}
"""


def html(found: Mapping[str, Any]) -> str:
    """Return a document (`report.document`) as a page."""
    parts = [f"<h1>Plan of the fleet, {escape(found['made_on'])}</h1>"]
    parts += [f'<p class="lead">{escape(words)}</p>' for words in found["summary"]]
    parts += [f'<p class="note">{escape(words)}</p>' for words in found["warnings"]]
    parts.append(f"<p>To be checked again by <strong>{escape(found['check_by'])}</strong>.</p>")
    for figure in found["figures"]:
        parts.append(f"<h2>{escape(figure['title'])}</h2>{figure['svg']}")
        parts.append(f"<details><summary>Figures</summary>{_table(figure['head'], figure['rows'])}</details>")
    parts.append("<h2>The 13 steps</h2>")
    parts += [_step(step) for step in found["steps"]]
    title = f"Plan of the fleet, {escape(found['made_on'])}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_PAGE_STYLE}{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _step(step: Mapping[str, Any]) -> str:
    of = f", {escape(step['of'])}" if step["of"] else ""
    rows = [(name, value) for name, value in step["inputs"].items()]
    words = "".join(f'<p class="note">{escape(one)}</p>' for one in step["warnings"])
    return (
        f'<h3>{step["number"]}. {escape(step["title"])}{of} <span class="tag">{escape(step["source"])}</span></h3>'
        f"<p>{escape(step['result'])}</p><p><code>{escape(step['formula'])}</code></p>{words}"
        f"<details><summary>Inputs</summary>{_table(('Input', 'Value'), rows)}</details>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
