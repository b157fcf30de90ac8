"""A plan as one HTML file, for people who read and do not run: pictures inside, nothing loaded from anywhere."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from capacity.charts import STYLE
from capacity.report import own_warnings
from capacity.wording import day

_FIGURE = re.compile(r"−?[\d,.]+( %| [A-Z]{3})?")
_UNIT = re.compile(r"(?<=\d) (?=%|[A-Z]{3}\b)")
_PAGE_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}h3{font-size:1rem;margin:1.6rem 0 .2rem}
table{border-collapse:collapse;width:100%;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .5rem;border-bottom:1px solid #d0d5dd;vertical-align:top}
thead th{vertical-align:bottom}.figure{white-space:nowrap}.wide{overflow-x:auto}.small{font-size:.85rem;color:#475467}
.note{border-left:4px solid #b54708;padding:.4rem .8rem;background:#fff6ed;margin:1rem 0}
.note ul{margin:.2rem 0;padding-left:1.2rem}
.answer{border:1px solid #98a2b3;border-radius:.5rem;padding:.2rem 1rem}.lead{font-size:1.25rem;font-weight:600}
.tag{font-size:.75rem;font-weight:400;border:1px solid #98a2b3;border-radius:1rem;padding:0 .5rem}
code{font-size:.85rem;overflow-wrap:anywhere}summary{cursor:pointer;color:#475467}svg{width:100%;height:auto}
@media (prefers-color-scheme:dark){body{color:#e6e9ef;background:#12161c}.note{background:#2b1d0e}
th,td{border-color:#344054}summary,.small{color:#98a2b3}}
@media print{body{font-size:11pt;max-width:none;margin:0;color:#000;background:#fff}.wide{overflow:visible}
table{font-size:.7rem}h2,h3{break-after:avoid}tr,svg,.answer{break-inside:avoid}summary{list-style:none}}
"""


def html(found: Mapping[str, Any]) -> str:
    """Return a document (`report.document`) as a page: the answer, what to know before it, tables, pictures, steps."""
    title = f"Plan of the fleet, {day(datetime.date.fromisoformat(found['made_on']))}"
    first, *others = found["summary"]
    parts = [f'<h1>{escape(title)}</h1><div class="answer"><p class="lead">{_joined(first)}</p>']
    parts += [f"<p>{_joined(words)}</p>" for words in others]
    parts.append("</div>")
    if found["warnings"]:
        items = "".join(f"<li>{escape(words)}</li>" for words in found["warnings"])
        parts.append(f'<div class="note"><strong>Before you rely on it</strong><ul>{items}</ul></div>')
    for table in found["tables"]:
        parts.append(f"<h2>{escape(table['title'])}</h2>{_table(table['head'], table['rows'])}{_note(table['note'])}")
    for figure in found["figures"]:
        parts.append(f"<h2>{escape(figure['title'])}</h2>{figure['svg']}{_note(figure['note'])}")
        parts.append(f"<details><summary>Figures</summary>{_table(figure['head'], figure['rows'])}</details>")
    parts.append("<h2>The 13 steps</h2>")
    parts += [_step(step, found) for step in found["steps"]]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_PAGE_STYLE}{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _step(step: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    of = f", {escape(step['of'])}" if step["of"] else ""
    rows = [(name, value) for name, value in step["inputs"].items()]
    words = "".join(f'<p class="note">{escape(one)}</p>' for one in own_warnings(step, found))
    worked = f"<br><code>{escape(step['worked'])}</code>" if step["worked"] else ""
    return (
        f'<h3>{step["number"]}. {escape(step["title"])}{of} <span class="tag">{escape(step["source"])}</span></h3>'
        f"<p>{escape(step['result'])}</p><p><code>{escape(step['formula'])}</code>{worked}</p>{words}"
        f"<details><summary>Inputs</summary>{_table(('Input', 'Value'), rows)}</details>"
    )


def _cell(words: str) -> str:
    style = ' class="figure"' if _FIGURE.fullmatch(words) else ""
    return f"<td{style}>{escape(words)}</td>"


def _joined(words: str) -> str:
    """Return a sentence whose amounts are not torn apart at the end of a line."""
    return _UNIT.sub("\u00a0", escape(words))


def _note(words: str) -> str:
    return f'<p class="small">{escape(words)}</p>' if words else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
