"""example, check and push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from creator_cli.adapters import CheckedAdapter, check_against, check_against_any, read_base_config
from creator_cli.against_peft import check_against_peft, drop_reference, replica_facts, show_answers
from creator_cli.bases import choose_base
from creator_cli.commands.options import AsJson
from creator_cli.commands.prices import copy_text
from creator_cli.commands.reviews import say_review, state_text
from creator_cli.control_api import ControlApi
from creator_cli.errors import Refused
from creator_cli.example import LISTING_NAME, write_example
from creator_cli.listing import read_listing
from creator_cli.names import parse_model_name
from creator_cli.output import Output, size_text
from creator_cli.push import PushRequest
from creator_cli.push import push as run_push
from creator_cli.session import open_api, platform_url
from creator_cli.settings import load_settings
from sealed_weights.contract import Contract
from sealed_weights.reference import MAX_ANSWERS, Reference

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A folder with adapter_config.json and adapter_model.safetensors.")
]


def example(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet.")],
    model: Annotated[
        str | None, typer.Option(metavar="ORG/SLUG", help="The model; my-model of your organization if left out.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="Name of the base model, if the platform has several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a small adapter of random weights and a listing, to try the other commands with.

    Example: intarsia example my-adapter
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        chosen = choose_base(api.bases(), base, how=f"intarsia example {folder} --base NAME")
        name = parse_model_name(model or f"{api.me().organization}/my-model")
    write_example(folder, chosen, name)
    if as_json:
        out.document({"folder": str(folder), "model": str(name), "base": chosen.name})
        return
    out.say(f"{folder}: an adapter for {chosen.name}, and the listing {name}")
    out.say(f"next: intarsia push {folder} --listing {folder / LISTING_NAME}")


def check(
    folder: Folder,
    base_config: Annotated[
        Path | None, typer.Option(help="config.json of the base model; the platform's base models if left out.")
    ] = None,
    against_peft: Annotated[
        bool, typer.Option("--against-peft", help="Keep PEFT's answers, which the platform's replica must give too.")
    ] = False,
    base: Annotated[Path | None, typer.Option(metavar="DIR", help="The base model's folder, for PEFT.")] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="ROWS", help="Rows that PEFT answers; the contract's examples if left out.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=MAX_ANSWERS, help="How many of them.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Check an adapter on this machine, as the platform will. Nothing is uploaded.

    Example: intarsia check ./my-adapter
    """
    out = Output(as_json=as_json)
    if against_peft and base is None:
        hint = "intarsia check DIR --against-peft --base BASE --rows rows.jsonl"
        raise Refused("name the base model's folder with --base: PEFT answers with it", field="base", hint=hint)
    if base is not None and base_config is None:
        base_config = base / "config.json"
    if against_peft:
        drop_reference(folder)  # of an earlier check: perhaps of other weights
    if base_config:
        checked = check_against(folder, read_base_config(base_config))
    else:
        url = platform_url(load_settings())
        if url is None:
            raise Refused(
                "no base model to check against", hint="intarsia check DIR --base-config config.json, or intarsia login"
            )
        with ControlApi(url, None) as api, out.waiting("checking"):
            checked = check_against_any(folder, api.bases())
    answered = check_against_peft(checked, base, rows, count, out) if against_peft and base is not None else None
    if answered is not None:
        checked = check_against(folder, checked.base)  # the package is larger now
    if as_json:
        found = {"ok": True, "base": checked.base.name, **checked.report(), "package_size": checked.package_size}
        out.document(found if answered is None else {**found, "peft": answered.to_json()})
        return
    out.say(f"{folder}: accepted")
    out.facts(_facts(checked))
    if answered is not None:
        show_answers(answered, out)


def push(
    folder: Folder,
    model: Annotated[str | None, typer.Option(metavar="ORG/SLUG", help="The model; the listing's if left out.")] = None,
    listing: Annotated[Path | None, typer.Option(help="model.json: title, summary, card, price.")] = None,
    changelog: Annotated[str, typer.Option(help="What is new in this version.")] = "",
    publish: Annotated[bool, typer.Option("--publish", help="Offer it for sale once it is verified.")] = False,
    wait: Annotated[float, typer.Option(min=0, max=86400, help="Seconds to wait for verification.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Check, seal and upload an adapter as the next version of a model.

    The weights are encrypted on this machine. An interrupted push continues when the same command is run again.

    Example: intarsia push ./my-adapter --listing model.json --publish
    """
    read = read_listing(listing) if listing else None
    named = parse_model_name(model) if model else None
    if read and named and read.name != named:
        raise Refused(f"--model says {named}, the listing says {read.name}", field="model")
    name = named or (read.name if read else None)
    if name is None:
        raise Refused("name the model with --model org/slug or --listing model.json", field="model")
    out = Output(as_json=as_json)
    settings = load_settings()
    with open_api(settings) as api:
        pushed = run_push(api, settings, PushRequest(folder, name, read, changelog, publish, wait), out)
    if as_json:
        out.document(pushed.to_json())
        return
    version = pushed.version
    out.say(f"{version.model}@{version.number} is {state_text(version.state)}")
    out.facts(
        [
            ("digest", version.digest),
            ("size", f"{size_text(version.size)} sealed"),
            ("rank", pushed.report["rank"]),
            ("targets", ", ".join(pushed.report["targets"])),
            *replica_facts(version.report),
        ]
    )
    if pushed.price is not None and pushed.price.copy is not None:
        out.say(copy_text(pushed.price.copy))
    say_review(version, out)
    if version.state == "verified":
        out.say(f"next: intarsia publish {version.model}@{version.number}")


def _facts(checked: CheckedAdapter) -> list[tuple[str, object]]:
    summary = checked.summary
    return [
        ("base", checked.base.name),
        ("rank", summary.rank),
        ("targets", ", ".join(summary.targets)),
        ("also", ", ".join(summary.extras.kinds) or "nothing beside linears"),
        ("parameters", f"{summary.parameter_count:,} in {summary.tensor_count} tensors, {summary.dtype}"),
        ("size", f"{size_text(summary.bytes)}, {size_text(checked.package_size)} sealed"),
        ("contract", _contract_fact(checked.contract)),
        ("PEFT's answers", _reference_fact(checked.reference)),
    ]


def _reference_fact(reference: Reference | None) -> str:
    if reference is None:
        return "none: intarsia check DIR --against-peft keeps them (docs/converting.md)"
    return f"{len(reference.answers)} in {reference.dtype}"


def _contract_fact(contract: Contract | None) -> str:
    if contract is None:
        return "none: callers bring their own instructions (docs/contract.md)"
    answer = "text" if contract.output is None else "JSON by its schema"
    messages = "one message" if contract.messages == "single" else "a chat"
    return f"{messages} in, {answer} out, at most {contract.max_tokens} tokens"
