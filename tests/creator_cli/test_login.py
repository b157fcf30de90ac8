"""Logging in, what is stored and how, and what is never shown."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from creator_cli.settings import Settings, load_settings
from tests.creator_cli.conftest import Machine
from tests.creator_cli.login_double import USER_CODE


def test_login_stores_the_token_registers_a_key_and_pins_the_platform(machine: Machine) -> None:
    result = machine.login()
    assert "logged in" in result.stdout
    stored = json.loads((machine.config_dir / "config.json").read_text())
    assert stored["url"] == machine.running.url and stored["token"] in machine.platform.tokens
    pins = json.loads((machine.config_dir / "known_platforms.json").read_text())
    assert pins[machine.running.url]["intake_key_fingerprint"] == machine.platform.intake_json()["fingerprint"]
    assert machine.platform.scopes == ["publish", "read"], "no more than a creator needs"
    assert len(machine.platform.signing_keys) == 1


def test_every_file_is_private(creator: Machine, adapter: str, listing: str) -> None:
    os.umask(0o022)
    creator.platform.failures["PUT package"] = 99
    creator.run("push", adapter, "--listing", listing)
    files = [path for path in creator.folder.rglob("*") if path.parts[len(creator.folder.parts)] in ("config", "cache")]
    names = {path.name for path in files}
    assert {"config.json", "identity.key", "known_platforms.json", "package.sealed", "push.json"} <= names
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_signing_key_is_made_once(creator: Machine) -> None:
    before = (creator.config_dir / "identity.key").read_bytes()
    creator.login()
    assert (creator.config_dir / "identity.key").read_bytes() == before and len(before) == 32
    assert len(creator.platform.signing_keys) == 1


def test_a_signing_key_that_others_may_read_is_refused(creator: Machine, adapter: str, listing: str) -> None:
    (creator.config_dir / "identity.key").chmod(0o644)
    refused = creator.run("push", adapter, "--listing", listing)
    assert refused.exit_code == 1 and "chmod 600" in refused.stderr
    assert creator.platform.versions == {}


def test_no_secret_is_ever_printed(machine: Machine, adapter: str, listing: str) -> None:
    outputs = [machine.login().output]
    secrets = [machine.token, (machine.config_dir / "identity.key").read_bytes().hex()]
    outputs.append(machine.ok("push", adapter, "--listing", listing, "--publish").output)
    outputs += [machine.run(*command).output for command in (["whoami"], ["status"], ["custody", "acme/triage"])]
    machine.platform.tokens.clear()
    outputs.append(machine.run("whoami", INTARSIA_TOKEN="ik_other_0123456789").output)
    secrets.append("ik_other_0123456789")
    for version in machine.platform.versions.values():
        secrets.append(bytes(version["dek"]).hex())
    assert not [secret for secret in secrets for output in outputs if secret in output]
    assert machine.token not in repr(load_settings({"INTARSIA_TOKEN": machine.token, "HOME": "/"}))


def test_the_browser_is_told_who_asks_and_the_terminal_which_code(machine: Machine) -> None:
    machine.platform.logins.answers = ["authorization_pending", "slow_down"]
    login = ("login", "--organization", "acme", "--scope", "read", "--scope", "predict", "--expires-days", "7")
    result = machine.ok(*login)
    assert USER_CODE in result.stderr and "http://platform.example/device" in result.stderr
    asked = machine.platform.logins.asked
    assert asked["name"].startswith("intarsia on ") and asked["scope"] == "read predict"
    assert (asked["organization"], asked["days"], asked["client_id"]) == ("acme", "7", "intarsia-cli")
    assert "signing key" not in result.stdout and machine.platform.signing_keys == {}, "only who publishes has one"
    assert "next: intarsia usage" in result.stdout


@pytest.mark.parametrize(
    ("answer", "said"), [("access_denied", "denied"), ("invalid_grant", "ended"), ("invalid_client", "--token-stdin")]
)
def test_a_login_that_is_not_confirmed_stores_nothing(machine: Machine, answer: str, said: str) -> None:
    machine.platform.logins.answers = ["authorization_pending", answer]
    refused = machine.run("login")
    assert refused.exit_code in (1, 3) and said in refused.stderr
    assert not (machine.config_dir / "config.json").exists() and machine.platform.tokens == set()


def test_a_browser_is_opened_only_where_somebody_sees_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    machine.login()
    assert opened == [], "standard error is no terminal"
    monkeypatch.setattr("creator_cli.commands.account.load_settings", lambda: replace(load(machine), has_browser=True))
    machine.ok("login", "--no-browser")
    assert opened == []
    machine.login()
    assert opened == [f"http://platform.example/device?code={USER_CODE}"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert load_settings({"DISPLAY": ":0", "HOME": "/"}).has_browser
    assert not load_settings({"DISPLAY": ":0", "SSH_CONNECTION": "10.0.0.1", "HOME": "/"}).has_browser


def test_a_scope_that_is_none_is_refused_here(machine: Machine) -> None:
    refused = machine.run("login", "--scope", "everything")
    assert refused.exit_code == 2 and "predict, publish" in refused.stderr and machine.platform.requests == []


def test_a_token_from_standard_input_is_tried_before_it_is_stored(machine: Machine) -> None:
    machine.platform.tokens.add("ik_ci_secret")
    machine.ok("login", "--token-stdin", stdin="ik_ci_secret\n")
    assert machine.token == "ik_ci_secret"
    assert machine.run("login", "--token-stdin", stdin="ik_wrong\n").exit_code == 3
    assert machine.token == "ik_ci_secret", "the good login stays"


def test_a_stored_token_is_never_sent_to_another_url(creator: Machine) -> None:
    creator.platform.requests.clear()
    other = creator.running.url.replace("127.0.0.1", "localhost")
    result = creator.run("whoami", INTARSIA_URL=other)
    assert result.exit_code == 3 and "not logged in to" in result.stderr
    assert creator.platform.requests == []


def test_the_token_of_the_environment_replaces_the_stored_one(machine: Machine) -> None:
    machine.platform.tokens.add("ik_ci_secret")
    assert "acme" in machine.ok("whoami", INTARSIA_TOKEN="ik_ci_secret").stdout


@pytest.mark.parametrize("command", [["whoami"], ["status"], ["earnings"], ["publish", "acme/triage@1"]])
def test_without_a_login_every_command_says_so(machine: Machine, command: list[str]) -> None:
    result = machine.run(*command)
    assert result.exit_code == 3 and "intarsia login" in result.stderr
    assert machine.platform.requests == []


@pytest.mark.parametrize(
    "url", ["http://intarsia.example", "ftp://x.example", "https://user:pw@x.example", "http://10.0.0.1", "https://"]
)
def test_an_unsafe_url_is_refused(machine: Machine, url: str) -> None:
    refused = machine.run("login", "--url", url)
    assert refused.exit_code == 2 and "pw" not in refused.output


def test_a_platform_that_is_not_there_is_exit_code_4(machine: Machine) -> None:
    machine.running.stop()
    result = machine.run("login")
    assert result.exit_code == 4 and "cannot be reached" in result.stderr and "Traceback" not in result.output


def test_logout_revokes_and_forgets_the_token_and_keeps_the_identity(creator: Machine) -> None:
    assert creator.json("logout") == {"logged_in": False, "token_revoked": True}
    assert creator.platform.tokens == set()
    assert sorted(path.name for path in creator.config_dir.iterdir()) == ["identity.key", "known_platforms.json"]
    assert creator.run("whoami").exit_code == 3


def test_logout_says_that_a_token_was_not_revoked(creator: Machine) -> None:
    creator.running.stop()
    assert "was not revoked" in creator.ok("logout").stderr


def test_logging_in_again_revokes_the_token_that_it_replaces(creator: Machine) -> None:
    old = creator.token
    creator.login()
    assert creator.platform.count("DELETE", "keys/") == 1 and creator.token != old


def test_a_damaged_login_says_what_to_delete_and_a_new_one_repairs_it(creator: Machine) -> None:
    (creator.config_dir / "config.json").write_text("{")
    result = creator.run("whoami")
    assert result.exit_code == 1 and "is damaged" in result.stderr and "rm " in result.stderr
    creator.login()
    assert creator.run("whoami").exit_code == 0


def test_an_unwritable_folder_is_one_message(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = str(tmp_path / "file" / "config")
    result = machine.run("login", INTARSIA_CONFIG_DIR=blocked)
    assert result.exit_code == 1 and "Traceback" not in result.output and len(result.stderr.splitlines()) <= 3


def load(machine: Machine) -> Settings:
    return load_settings(machine.environment)
