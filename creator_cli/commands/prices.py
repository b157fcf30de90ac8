"""price."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from creator_cli.commands.options import AsJson, ModelArgument
from creator_cli.errors import CliError, Refused
from creator_cli.names import parse_dollars, parse_model_name, parse_multiplier, parse_time
from creator_cli.output import Output
from creator_cli.records import CopyCost, Price
from creator_cli.session import open_api
from creator_cli.settings import load_settings
from protocol.money import usd


def price(
    model: ModelArgument,
    input_price: Annotated[str | None, typer.Option("--input", help="Dollars per million input tokens.")] = None,
    output_price: Annotated[str | None, typer.Option("--output", help="Dollars per million output tokens.")] = None,
    cached_input: Annotated[
        str | None, typer.Option(help="Dollars per million cached input tokens; the input price if left out.")
    ] = None,
    embedding: Annotated[
        str | None, typer.Option(help="Dollars per million tokens of embeddings; none are sold if left out.")
    ] = None,
    per_prediction: Annotated[str, typer.Option(help="Dollars for each prediction.")] = "0",
    interactive: Annotated[str, typer.Option(help="Multiplier of service tier priority, for example 1.5.")] = "1",
    batch: Annotated[str, typer.Option(help="Multiplier of service tier flex, for example 0.5.")] = "1",
    free_monthly: Annotated[str, typer.Option(help="Dollars free for each consumer in each month.")] = "0",
    free_once: Annotated[str, typer.Option(help="Dollars free for each consumer, once.")] = "0",
    version: Annotated[int | None, typer.Option(help="Only this version; every version if left out.")] = None,
    starts: Annotated[
        str | None, typer.Option("--from", help="When it begins (UTC), for example 2027-01-01; now if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set the price of a model, now or from a later day on; without options, show it.

    Example: intarsia price acme/triage --input 0.06 --output 0.24
    """
    out = Output(as_json=as_json)
    name = parse_model_name(model)
    given = (input_price, output_price, cached_input, embedding, version, starts)
    defaults = (per_prediction, interactive, batch, free_monthly, free_once) == ("0", "1", "1", "0", "0")
    with open_api(load_settings()) as api:
        if defaults and all(option is None for option in given):
            found = api.model(name)
            if found is None:
                raise CliError(f"there is no model {name}", hint="intarsia status", code="not_found")
            prices = api.prices(name)
            # The list says what a copy costs at each price; the listing has the price alone.
            told = next((one for one in prices if found.price and replace(one, copy=None) == found.price), found.price)
            _show(model, told, _announced(prices), out)
            return
        if input_price is None or output_price is None:
            raise Refused("a price needs both --input and --output", field="input" if input_price is None else "output")
        wanted: dict[str, Any] = {
            "input_micro_usd_per_mtok": parse_dollars(input_price, decimals=6, field="input"),
            "output_micro_usd_per_mtok": parse_dollars(output_price, decimals=6, field="output"),
            "per_prediction_nano_usd": parse_dollars(per_prediction, decimals=9, field="per-prediction"),
            "interactive_bps": parse_multiplier(interactive, field="interactive"),
            "batch_bps": parse_multiplier(batch, field="batch"),
            "monthly_free_nano_usd": parse_dollars(free_monthly, decimals=9, field="free-monthly"),
            "intro_free_nano_usd": parse_dollars(free_once, decimals=9, field="free-once"),
        }
        if cached_input is not None:
            wanted["cached_input_micro_usd_per_mtok"] = parse_dollars(cached_input, decimals=6, field="cached-input")
        if embedding is not None:
            wanted["embedding_micro_usd_per_mtok"] = parse_dollars(embedding, decimals=6, field="embedding")
        if version is not None:
            wanted["version"] = version
        if starts is not None:
            wanted["effective_at"] = parse_time(starts, field="from").isoformat()
        _show(model, api.set_price(name, wanted), [], out)


def _announced(prices: list[Price]) -> list[Price]:
    """Return the prices that have not begun, the next one first."""
    now = datetime.now(UTC)
    return sorted((price for price in prices if price.effective_at > now), key=lambda price: price.effective_at)


def _show(model: str, price: Price | None, announced: list[Price], out: Output) -> None:
    if out.as_json:
        document: dict[str, Any] = {"model": model, "price": price.to_json() if price else None}
        out.document({**document, "announced": [one.to_json() for one in announced]})
        return
    if price is None:
        out.say(f"{model} has no price yet; next: intarsia price {model} --input DOLLARS --output DOLLARS")
    else:
        out.facts(_facts(price))
    for one in announced:
        out.say("")
        out.facts([("begins", f"{one.effective_at:%Y-%m-%d %H:%M} UTC"), *_facts(one)])


def _facts(price: Price) -> list[tuple[str, object]]:
    def rate(amount: int) -> str:
        return f"{usd(amount, 6)} per million tokens"

    facts: list[tuple[str, object]] = [
        ("applies to", "every version" if price.version is None else f"version {price.version}"),
        ("input", rate(price.input_micro_usd_per_mtok)),
        ("cached input", rate(price.cached_input_micro_usd_per_mtok)),
        ("output", rate(price.output_micro_usd_per_mtok)),
        ("per prediction", usd(price.per_prediction_nano_usd)),
        ("service tiers", f"priority {_times(price.interactive_bps)}, flex {_times(price.batch_bps)}"),
    ]
    if price.embedding_micro_usd_per_mtok is not None:
        facts.insert(4, ("embeddings", rate(price.embedding_micro_usd_per_mtok)))
    if price.monthly_free_nano_usd:
        facts.append(("free per month", f"{usd(price.monthly_free_nano_usd)} for each consumer"))
    if price.intro_free_nano_usd:
        facts.append(("free once", f"{usd(price.intro_free_nano_usd)} for each consumer"))
    if price.copy is not None:
        facts.append(("a copy", copy_text(price.copy)))
    return facts


def copy_text(copy: CopyCost) -> str:
    """Return what a copy of a model through its own API costs, as a sentence for its creator."""
    most = "at most " if copy.predictions is None else ""
    return (
        f"{copy.calls:,} calls, enough for a copy of a model like this, cost {most}{usd(copy.nano_usd)} at this price"
    )


def _times(bps: int) -> str:
    """10,000 is "1 ×", 12,500 is "1.25 ×"."""
    return f"{bps / 10_000:.4f}".rstrip("0").rstrip(".") + " ×"
