"""The demonstration, step by step. Its last line of output is one JSON object with the figures."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any

import httpx
import openai
from rich.table import Table

from devstack.console import console, fail, heading, line, step
from devstack.demo.papers import close_last_month, fetch_tax_invoice, show_running_month, write_profiles
from devstack.demo.payout import pay_out
from devstack.demo.platform_client import PlatformClient
from devstack.demo.predictions import Answer, Consumer, held_out
from devstack.demo.process import RunningStack, running_stack
from devstack.samples import SampleCreator, SampleCreators
from devstack.state import State
from protocol.money import CENTS, decimal, usd

TOP_UP_CENTS = 2_500
GUESSED_ROWS = 6
LEAST_GAIN_POINTS = 40
MEASURE_SECONDS = 240
REVOKE_LIMIT_SECONDS = 5.0


@dataclass(frozen=True)
class Measured:
    """One evaluation: its figure, how many of its calls were charged, and what they cost in nano-dollars."""

    figure: dict[str, Any]
    charged: int
    cost_nano_usd: int

    @classmethod
    def of(cls, answer: dict[str, Any], operator: PlatformClient) -> Measured:
        """Read what `intarsia eval push --json` printed, and count the run's receipts."""
        figure = answer["evaluation"]
        page: dict[str, Any] = {"next": f"evaluations/{figure['run_id']}/calls?limit=200"}
        charged = 0
        while page["next"]:
            page = operator.get(page["next"])
            charged += sum(call["receipt_sha256"] is not None for call in page["results"])
        return cls(figure, charged, answer["run"]["spent_nano_usd"])

    @property
    def adapter(self) -> float:
        return float(self.figure["correct"] / self.figure["rows"])

    @property
    def base(self) -> float:
        return float(self.figure["base_correct"] / self.figure["rows"])


def run_demo(state: State) -> int:
    """Run the demonstration. Returns exit status 0 when every figure is right, else 1 after the reasons."""
    started = time.monotonic()
    with running_stack(state) as stack:
        figures, problems = asyncio.run(_demonstrate(state, stack))
    line(f"the whole demonstration took {time.monotonic() - started:.0f} s; nothing is left running")
    for problem in problems:
        fail(problem)
    print(json.dumps(figures), flush=True)
    return 1 if problems else 0


async def _demonstrate(state: State, stack: RunningStack) -> tuple[dict[str, Any], list[str]]:
    creators = SampleCreators(state, stack.url).all()
    operator = PlatformClient(state, stack.url, "staff", ["account"])
    before = operator.wait_until_settled()

    heading("Three creators publish: sealed on their machine, verified by the replica")
    pushes = await asyncio.gather(*(asyncio.to_thread(_push, creator) for creator in creators))
    versions = {creator.role: pushed for creator, pushed in zip(creators, pushes, strict=True)}
    models = {creator.role: creator.model_name for creator in creators}

    heading("A consumer tops up and creates an API key")
    account = PlatformClient(state, stack.url, "consumer", ["account"])
    with step(f"top-up of {usd(TOP_UP_CENTS, CENTS)} through Stripe's client and Checkout (the project's double)"):
        available = account.top_up(TOP_UP_CENTS)
    line(f"wallet: ${decimal(available)}")
    write_profiles(operator, account)
    consumer = Consumer(stack.url, account.create_prediction_key())

    heading("All three models at once, with the unmodified openai package")
    answers = await _ask_all(consumer, models)

    heading("Held-out accuracy: rows sealed by each creator, measured by the platform at the creator's expense")
    runs = await _measure(creators, operator)

    heading("Guessed ahead: answers of a measured model take a third of the steps")
    guessed = await _ask_guessing(consumer, models)
    answers += guessed

    batches = _batches(stack)
    line(f"most adapters in one batch: {batches}")

    heading("Custody: every release of the finance model's key")
    console.print(creators[0].cli("custody", creators[0].model_name).rstrip())

    heading("Kill switch")
    seconds, last_answers = await _revoke(consumer, creators[2], versions["telecom"])
    answers += last_answers
    line(f"refused {seconds:.2f} s after the creator said so; a new version takes its place")
    _push(creators[2])
    await consumer.close()

    heading("The finance creator is paid out through Stripe Connect")
    seller = PlatformClient(state, stack.url, "finance", ["account"])
    payout = await asyncio.to_thread(pay_out, seller)
    seller.log_out()

    heading("The money")
    summary = operator.wait_until_settled()
    _show_money(account, before, summary, creators)
    heading("Papers for an accountant")
    receipt, missing = fetch_tax_invoice(account, state.root / "papers")
    wrong = show_running_month(operator, account, state.root / "papers")
    heading("The month before is closed")
    closed, contradictions = close_last_month(operator, state.root / "papers")
    account.log_out()
    operator.log_out()
    figures, problems = _figures(before, summary, runs, batches, seconds, answers)
    problems += missing + wrong + contradictions
    figures["payout"] = {"state": payout["state"], "amount_cents": payout["amount_cents"]}
    if payout["state"] != "paid":
        problems.append(f"the payout to the finance creator is {payout['state']} ({payout['failure_code']})")
    return figures | {"receipt": receipt["number"], "closed": closed}, problems


def _push(creator: SampleCreator) -> dict[str, Any]:
    started = time.monotonic()
    pushed = creator.push()
    report = pushed["report"]
    line(f"[green]✓[/green] intarsia push {creator.model_name} [dim]{time.monotonic() - started:.1f} s[/dim]")
    line(
        f"  [dim]version {pushed['version']}, rank {report['rank']}, {', '.join(report['targets'])}, "
        f"{pushed['size'] / 2**20:.1f} MiB sealed, digest {pushed['digest'][:16]}…[/dim]"
    )
    return pushed


async def _ask_all(consumer: Consumer, models: dict[str, str]) -> list[Answer]:
    started = time.monotonic()
    calls = []
    modes = []
    for role, name in models.items():
        row = held_out(role)[0]
        calls += [consumer.ask(name, row.messages), consumer.ask_streaming(name, row.messages)]
        modes += ["whole", "streamed"]
    answers = list(await asyncio.gather(*calls))
    table = Table("model", "mode", "answer", "tokens in+out", "cost $", "first token", box=None, padding=(0, 2))
    for answer, mode in zip(answers, modes, strict=True):
        table.add_row(
            answer.model,
            mode,
            answer.text.strip(),
            f"{answer.prompt_tokens}+{answer.completion_tokens}",
            decimal(answer.cost_nano_usd),
            f"{answer.first_token_seconds:.2f} s" if mode == "streamed" else "",
        )
    console.print(table)
    line(f"[dim]{len(answers)} predictions in {time.monotonic() - started:.1f} s[/dim]")
    return answers


async def _ask_guessing(consumer: Consumer, models: dict[str, str]) -> list[Answer]:
    """Ask each model a few rows: a guess changes no answer and is in no bill (docs/speculation.md)."""
    table = Table("model", "answers", "tokens", "guessed right", "guessed wrong", "steps", box=None, padding=(0, 2))
    answers = []
    for role, name in models.items():
        some = [await consumer.ask(name, row.messages) for row in held_out(role)[1 : 1 + GUESSED_ROWS]]
        tokens = sum(answer.completion_tokens for answer in some)
        right = sum(answer.accepted_tokens for answer in some)
        wrong = sum(answer.rejected_tokens for answer in some)
        table.add_row(name, str(len(some)), str(tokens), str(right), str(wrong), str(tokens - right))
        answers += some
    console.print(table)
    return answers


async def _measure(creators: list[SampleCreator], operator: PlatformClient) -> dict[str, Measured]:
    started = time.monotonic()
    done = await asyncio.gather(*(asyncio.to_thread(creator.measure, wait=MEASURE_SECONDS) for creator in creators))
    runs = {creator.role: Measured.of(answer, operator) for creator, answer in zip(creators, done, strict=True)}
    table = Table("model", "held-out rows", "base", "adapter", "95 % interval", "cost $", box=None, padding=(0, 2))
    for creator in creators:
        run = runs[creator.role]
        figure = run.figure
        table.add_row(
            creator.model_name,
            str(figure["rows"]),
            f"{100 * run.base:.1f} %",
            f"{100 * run.adapter:.1f} %",
            f"{100 * figure['low']:.1f} to {100 * figure['high']:.1f} %",
            decimal(run.cost_nano_usd),
        )
    console.print(table)
    line(
        f"[dim]{2 * sum(run.figure['rows'] for run in runs.values())} calls in {time.monotonic() - started:.1f} s[/dim]"
    )
    return runs


def _batches(stack: RunningStack) -> int:
    """Return the replica's own gauge: the most adapters in one batch."""
    text = httpx.get(f"{stack.replica_url}/metrics", timeout=5).text
    found = re.search(r"^\w*max_adapters_in_one_batch\S* ([\d.]+)", text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def _show_money(
    account: PlatformClient,
    before: dict[str, Any],
    summary: dict[str, Any],
    creators: list[SampleCreator],
) -> None:
    wallet = account.get("wallet")
    line(f"consumer's wallet     ${decimal(wallet['available_nano_usd'])}  (held: {wallet['held_nano_usd']})")
    for creator in creators:
        earned = json.loads(creator.cli("earnings", "--json"))
        line(f"{creator.listing['org_slug']:<21} ${decimal(earned['total_nano_usd'])}  earned in all")
    line(f"platform's revenue    ${decimal(summary['platform_nano_usd'])}  in all")
    line(f"ledger sum            {summary['ledger_sum_nano_usd']} nano-dollars over all accounts")
    line(f"predictions           {summary['predictions'] - before['predictions']} in this demonstration")


async def _revoke(consumer: Consumer, creator: SampleCreator, version: dict[str, Any]) -> tuple[float, list[Answer]]:
    """Revoke one version and call it until it is refused. Returns the seconds until then, and the answers."""
    name = f"{creator.model_name}@{version['version']}"
    messages = held_out(creator.role)[0].messages
    answers = [await consumer.ask(name, messages)]
    started = time.monotonic()
    revoking = asyncio.create_task(asyncio.to_thread(creator.cli, "revoke", name, "--reason", "demonstration", "--yes"))
    while True:
        try:
            answers.append(await consumer.ask(name, messages))
        except openai.PermissionDeniedError as error:
            seconds = time.monotonic() - started
            await revoking
            line(f"{name}: {error.status_code} {error.code}")
            return seconds, answers
        if time.monotonic() - started > 60:
            await revoking
            return time.monotonic() - started, answers


def _figures(
    before: dict[str, Any],
    summary: dict[str, Any],
    runs: dict[str, Measured],
    batches: int,
    revoke_seconds: float,
    answers: list[Answer],
) -> tuple[dict[str, Any], list[str]]:
    """Return the object of the last line, and the figures in it that are wrong, in words."""

    def during(name: str) -> int:
        return int(summary[name]) - int(before[name])

    figures: dict[str, Any] = {
        "predictions": during("predictions"),
        "charged_nano_usd": during("charged_nano_usd"),
        "creator_nano_usd": during("creator_nano_usd"),
        "platform_nano_usd": during("platform_nano_usd"),
        "ledger_sum_nano_usd": summary["ledger_sum_nano_usd"],
        "accuracy": {role: {"base": run.base, "adapter": run.adapter} for role, run in runs.items()},
        "accepted_tokens": sum(answer.accepted_tokens for answer in answers),
        "max_adapters_in_one_batch": batches,
        "revoke_seconds": round(revoke_seconds, 3),
    }
    problems = []
    charged = len(answers) + sum(run.charged for run in runs.values())
    if figures["predictions"] != charged:
        problems.append(f"{charged} predictions were answered and not free, {figures['predictions']} are on the bill")
    told = sum(answer.cost_nano_usd for answer in answers) + sum(run.cost_nano_usd for run in runs.values())
    if figures["charged_nano_usd"] != told:
        problems.append("the bill is not the sum of what the answers said they cost")
    if figures["charged_nano_usd"] != figures["creator_nano_usd"] + figures["platform_nano_usd"]:
        problems.append("charges are not creators' plus platform's shares")
    if figures["ledger_sum_nano_usd"] != 0:
        problems.append("the ledger does not sum to zero")
    for role, accuracy in figures["accuracy"].items():
        if 100 * (accuracy["adapter"] - accuracy["base"]) < LEAST_GAIN_POINTS:
            problems.append(f"{role}: the adapter is less than {LEAST_GAIN_POINTS} points above the base")
    if not figures["accepted_tokens"]:
        problems.append("no token was guessed right")
    if batches < 2:
        problems.append("no batch held several adapters")
    if revoke_seconds > REVOKE_LIMIT_SECONDS:
        problems.append(f"a revoked version still answered after {REVOKE_LIMIT_SECONDS} s")
    return figures, problems
