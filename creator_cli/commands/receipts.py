"""receipt keys, receipt get and receipt verify."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from creator_cli.commands.options import AsJson
from creator_cli.control_api import ControlApi
from creator_cli.errors import NotLoggedIn
from creator_cli.output import Output
from creator_cli.private_files import write_private
from creator_cli.receipts import ReceiptKeys, SavedKeys, read_keys, verify_file
from creator_cli.records import time_of
from creator_cli.session import open_api, platform_url
from creator_cli.settings import load_settings
from protocol.money import usd
from protocol.proofs.documents import VerifiedReceipt

receipt = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Keep the platform's receipt keys, fetch receipts, and verify them offline.",
)


@receipt.command()
def keys(
    export: Annotated[Path | None, typer.Option(help="Write the key file here, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Save the platform's receipt keys with their history. A set that contradicts the saved one is refused.

    Example: intarsia receipt keys
    """
    out = Output(as_json=as_json)
    settings = load_settings()
    url = platform_url(settings)
    if url is None:
        raise NotLoggedIn("there is no platform", hint="intarsia login --url https://…")
    with ControlApi(url, None) as api:
        data = api.receipt_keys()
    found = ReceiptKeys.load(settings).save(url, data)
    if export:
        write_private(export, data)
    if as_json:
        out.document(msgspec.to_builtins(found))
        return
    out.table(
        ("key", "from (UTC)", "until (UTC)", "public key"),
        [
            (key.kid, _second(key.valid_from), _second(key.valid_until) or "in use", key.public_key)
            for key in found.keys
        ],
    )
    out.say(f"saved for {url}; receipts that these keys signed verify offline from now on")


@receipt.command()
def get(
    prediction: Annotated[UUID, typer.Argument(help="The id of a prediction (header X-Intarsia-Prediction).")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: receipt-ID.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the receipt of a prediction that your organization paid for, and keep the keys that sign it.

    Example: intarsia receipt get 6f1d5e1c-64a5-4d0b-9c0e-0f5b5a3f8a52 -o receipt.json
    """
    out = Output(as_json=as_json)
    settings = load_settings()
    with open_api(settings) as api:
        data = api.receipt(prediction)
        pinned = ReceiptKeys.load(settings)
        found = SavedKeys(api.url, pinned.save(api.url, api.receipt_keys()))
    path = output or Path(f"receipt-{prediction}.json")
    write_private(path, data)
    proven, _ = verify_file(path, [found])
    _show(out, path, proven, found)
    out.say(f"next: intarsia receipt verify {path}, offline and as often as you like")


@receipt.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A receipt, from `intarsia receipt get` or the platform's page.")],
    keys_file: Annotated[
        Path | None, typer.Option("--keys", help="A key file kept earlier, instead of those saved on this machine.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a receipt offline: signatures, keys of the time, sum, split, and its place in the day's tree.

    Example: intarsia receipt verify receipt.json
    """
    saved = [read_keys(keys_file)] if keys_file else ReceiptKeys.load(load_settings()).all()
    proven, used = verify_file(file, saved)
    _show(Output(as_json=as_json), file, proven, used)


def _show(out: Output, path: Path, proven: VerifiedReceipt, used: SavedKeys) -> None:
    if out.as_json:
        out.document(_document(path, proven, used))
        return
    charge = proven.charge
    out.facts(
        [
            ("charged", usd(proven.charged_nano_usd)),
            ("cost", usd(charge.cost_nano_usd)),
            *(("given back", f"{usd(one.amount_nano_usd)}: {one.reason}") for one in proven.corrections),
            ("prediction", f"{charge.prediction_id}, attempt {charge.attempt}"),
            ("model", charge.model),
            ("time (UTC)", f"{time_of(charge.charged_at):%Y-%m-%d %H:%M:%S}"),
            ("tokens", f"{charge.prompt_tokens} ({charge.cached_tokens} cached) + {charge.completion_tokens}"),
            ("class", f"{charge.latency_class}, {charge.class_bps / 100:g} % of the list price"),
            *((one.reason, f"{usd(one.nano_usd)}, {one.basis_points / 100:g} %") for one in charge.split),
        ]
    )
    out.say(f"{path}: the receipt is valid; signed {_second(proven.signed.signed_at)} UTC by {proven.signed.kid}")
    if proven.head is None:
        out.say("it holds no place in a published tree yet: fetch it again an hour later for that")
    else:
        out.say(f"it is in the published tree of {proven.head.day}, of {proven.head.size} receipts")
    out.say(f"checked with the keys of {used.source}, as of {_second(used.file.published_at)} UTC")


def _document(path: Path, proven: VerifiedReceipt, used: SavedKeys) -> dict[str, Any]:
    return {
        "ok": True,
        "file": str(path),
        "charged_nano_usd": proven.charged_nano_usd,
        "charge": msgspec.to_builtins(proven.charge),
        "corrections": msgspec.to_builtins(proven.corrections),
        "signed_by": proven.signed.kid,
        "signed_at": proven.signed.signed_at,
        "day": msgspec.to_builtins(proven.head) if proven.head else None,
        "head_sha256": proven.head_hash.hex() if proven.head_hash else None,
        "keys": {"source": used.source, "published_at": used.file.published_at},
    }


def _second(moment: int | None) -> str | None:
    return None if moment is None else f"{datetime.fromtimestamp(moment, tz=UTC):%Y-%m-%d %H:%M:%S}"
