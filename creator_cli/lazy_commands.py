"""The sub-commands of `intarsia`, each imported when it runs.

`intarsia --help` and the completion of command names read the table below and import no command, so that they answer
without loading HTTP, crypto and numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command: its name, the module of `creator_cli.commands` that has it under this name, and its line of help."""

    name: str
    module: str
    summary: str

    def load(self) -> Any:
        """Import the module and return the command that typer makes from the function or application there."""
        found = getattr(import_module(f"creator_cli.commands.{self.module}"), self.name)
        if not isinstance(found, typer.Typer):
            application = typer.Typer(add_completion=False)
            application.command(self.name)(found)
            found = application
        return typer.main.get_command(found)


COMMANDS = (
    LazyCommand(
        "login", "account", "Log in through your browser, create this machine's signing key and pin the platform's key."
    ),
    LazyCommand(
        "logout", "account", "Revoke the token where possible and forget it. The signing key and pinned keys stay."
    ),
    LazyCommand("whoami", "account", "Show which user and organization this machine is logged in as."),
    LazyCommand(
        "init",
        "init",
        "Write a listing, model.json, by asking; options answer beforehand, and --yes takes what is proposed.",
    ),
    LazyCommand(
        "example",
        "adapters",
        "Write a small adapter of random weights and a listing, to try the other commands with.",
    ),
    LazyCommand("check", "adapters", "Check an adapter on this machine, as the platform will. Nothing is uploaded."),
    LazyCommand("rows", "rows", "Rewrite a whole saved embedding or head as the few rows that were trained."),
    LazyCommand(
        "convert",
        "convert",
        "Convert an adapter of another PEFT method to plain LoRA on this machine, and measure what that costs.",
    ),
    LazyCommand("push", "adapters", "Check, seal and upload an adapter as the next version of a model."),
    LazyCommand("status", "models", "Show your models, or one model with its newest version."),
    LazyCommand("versions", "models", "List the versions of a model, newest first."),
    LazyCommand("publish", "models", "Offer a verified version for sale."),
    LazyCommand("appeal", "models", "Appeal the refusal of a version, once. A person answers within one working day."),
    LazyCommand("price", "prices", "Set the price of a model, now or from a later day on; without options, show it."),
    LazyCommand(
        "rollout",
        "rollouts",
        "Give a version to a part of the customers, 1 to 100 percent; without a percentage, compare both versions.",
    ),
    LazyCommand(
        "rollback",
        "rollouts",
        "Take a rollout back, or make an earlier version the default again: intarsia rollback ORG/SLUG@N.",
    ),
    LazyCommand(
        "deprecate",
        "rollouts",
        "Announce the end of a version: its customers are told, and it is retired on that day.",
    ),
    LazyCommand(
        "precisions",
        "precisions",
        "Show the checkpoints that your versions are served on, and what was measured there; or give and refuse leave.",
    ),
    LazyCommand("retire", "models", "Take a version off sale for good."),
    LazyCommand(
        "revoke",
        "models",
        "Pull the kill switch: replicas refuse the version, cut off its predictions, wipe it, and confirm that.",
    ),
    LazyCommand("eval", "evals", "Measure a version on the platform with rows that are sealed on this machine."),
    LazyCommand("canary", "canary", "Plant secret rows in your training set, and find stolen weights by them."),
    LazyCommand(
        "usage",
        "usage",
        "Show what your organization spent, by model, day or key; or write its predictions to a CSV file.",
    ),
    LazyCommand(
        "logs",
        "usage",
        "Show your newest predictions, or how one of your own models is called: sums by the hour, never by whom.",
    ),
    LazyCommand("wallet", "usage", "Show your organization's credit."),
    LazyCommand(
        "keys",
        "keys",
        "List, create, rotate and revoke your organization's API keys; that needs the scope account.",
    ),
    LazyCommand(
        "mcp",
        "mcp",
        "Serve MCP over standard input and output: an agent searches, quotes and buys within one budget.",
    ),
    LazyCommand("earnings", "money", "Show what your models earned: in total, by model and by day (UTC)."),
    LazyCommand("receipt", "receipts", "Keep the platform's receipt keys, fetch receipts, and verify them offline."),
    LazyCommand("payouts", "payouts", "Show your payouts and what is payable; set payouts up, or ask for one."),
    LazyCommand(
        "custody", "custody", "Show who held the keys of a model, and when: intarsia custody ORG/SLUG [--export FILE]."
    ),
)


class LazyGroup(TyperGroup):
    """A group that lists its commands from the table and imports the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._lazy = {command.name: command for command in COMMANDS}
        self.commands = {command.name: TyperCommand(command.name, help=command.summary) for command in COMMANDS}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, the imported command and the remaining `args`; raises UsageError for an unknown name."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, self._lazy[name].load() if name is not None else listed, rest
