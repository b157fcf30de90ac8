"""Every environment variable the web process, worker and beat read: declared, parsed and checked here, once.

`Env.load()` raises `EnvError` naming the variable, what is wrong and what to do, before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from marketplace.catalog.buckets import Bucket, BucketError, parse_bucket
from marketplace.config.mail import Mail, MailError, parse_mail
from protocol.origins import parse_origins

Network = IPv4Network | IPv6Network
PRIVATE_NETWORKS = "127.0.0.0/8,::1/128,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fd00::/8"


class EnvError(Exception):
    """A variable is missing or malformed; the message says which and what to do."""


def _need(source: Mapping[str, str], name: str) -> str:
    value = source.get(name, "")
    if not value:
        raise EnvError(f"{name} is not set; `make run` sets it for the local stack, production must provide it")
    return value


def _url(source: Mapping[str, str], name: str, schemes: tuple[str, ...], default: str | None = None) -> str:
    value = source.get(name, "") or (default if default is not None else _need(source, name))
    if urlsplit(value).scheme not in schemes:
        raise EnvError(f"{name} must be a {' or '.join(schemes)} URL")
    return value


def _integer(source: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    raw = source.get(name, "") or str(default)
    if not raw.lstrip("-").isdigit() or not low <= int(raw) <= high:
        raise EnvError(f"{name} must be an integer between {low} and {high}")
    return int(raw)


def _reserve_days(source: Mapping[str, str]) -> int | None:
    if not source.get("PAYOUT_RESERVE_DAYS", ""):
        return None
    # A demonstration pays out what it has just earned; real money waits until disputes are known.
    least = 0 if source.get("STRIPE_API_BASE", "") else 7
    return _integer(source, "PAYOUT_RESERVE_DAYS", 14, least, 14)


def _metrics_token(source: Mapping[str, str]) -> str:
    token = source.get("METRICS_TOKEN", "")
    if token and len(token) < 32:
        raise EnvError("METRICS_TOKEN must be at least 32 characters long, or empty: then there is no /metrics")
    return token


def _usage_months(source: Mapping[str, str]) -> int:
    months = _integer(source, "USAGE_MONTHS_KEPT", 25, 0, 1200)
    if 0 < months < 13:  # a year to compare with; the database refuses it too
        raise EnvError("USAGE_MONTHS_KEPT must be 0 (all of them) or at least 13")
    return months


def _networks(source: Mapping[str, str], name: str, default: str) -> tuple[Network, ...]:
    try:
        parts = (source.get(name, "") or default).split(",")
        return tuple(ip_network(part.strip()) for part in parts if part.strip())
    except ValueError as error:
        raise EnvError(f"{name} must be networks such as 10.0.0.0/8,fd00::/8: {error}") from None


def _origins(source: Mapping[str, str], name: str) -> frozenset[str]:
    try:
        return parse_origins(source.get(name, ""))
    except ValueError as error:
        raise EnvError(f"{name}: {error}; separate several with commas") from None


def _mail(source: Mapping[str, str]) -> Mail:
    try:
        return parse_mail(
            source.get("EMAIL_URL", ""),
            debug=source.get("DEBUG", "0") == "1",
            public_url=_need(source, "PUBLIC_URL"),
        )
    except MailError as error:
        raise EnvError(str(error)) from None


def _bucket(source: Mapping[str, str]) -> Bucket | None:
    try:
        return parse_bucket(source)
    except BucketError as error:
        raise EnvError(str(error)) from None


@dataclass(frozen=True)
class Env:
    """The validated environment. Field comments are the documentation of each variable."""

    # DATABASE_URL: postgresql://user:password@host:port/name, or ?host=/socket/folder; the application's role
    database_url: str
    database_admin_url: str  # DATABASE_ADMIN_URL: the same database as its administrator; for `migrate` alone
    valkey_url: str  # VALKEY_URL: redis://… or unix://…?db=0, for Celery, rate limits and cache
    secret_key: str  # SECRET_KEY: ≥ 32 characters; sessions, CSRF, playground tokens, secrets of webhooks
    api_key_pepper: str  # API_KEY_PEPPER: ≥ 32 characters; HMAC key over API-key secrets
    replica_networks: tuple[Network, ...]  # REPLICA_NETWORKS: comma-separated networks in which replicas may be
    webhook_networks: tuple[Network, ...]  # WEBHOOK_NETWORKS: webhooks may be there besides public addresses; empty: no
    trusted_proxies: tuple[Network, ...]  # TRUSTED_PROXIES: networks whose X-Forwarded-For is believed; empty: none
    root_key_file: Path  # ROOT_KEY_FILE: 0600 file with the root key-encryption key; created if absent
    blob_dir: Path  # BLOB_DIR: folder of uploads and, without BLOB_STORE, of sealed packages (ciphertext)
    # BLOB_STORE: s3://bucket/prefix of sealed packages, with BLOB_S3_ENDPOINT, BLOB_S3_REGION, BLOB_S3_ACCESS_KEY and
    # BLOB_S3_SECRET_KEY; empty: files below BLOB_DIR; see catalog/buckets.py
    blob_bucket: Bucket | None
    delivery_dir: (
        Path  # DELIVERY_DIR: delivery logs of this machine's gateways; by default "deliveries" beside BLOB_DIR
    )
    public_url: str  # PUBLIC_URL: where browsers and clients reach the platform
    api_url: str  # API_URL: where workers reach this platform's own /v1; PUBLIC_URL where it is not set
    stripe_api_key: str  # STRIPE_API_KEY
    stripe_api_base: str  # STRIPE_API_BASE: empty for Stripe itself, the double's URL in the local stack
    stripe_webhook_secret: str  # STRIPE_WEBHOOK_SECRET
    rate_limit: int  # RATE_LIMIT: predictions per second of one organization; five times as many at once
    stripe_tax: bool  # STRIPE_TAX: 0 if the account at Stripe has no Stripe Tax; receipts then show no tax
    platform_fee_bps: int  # PLATFORM_FEE_BPS: the platform's share of each prediction, basis points
    payout_reserve_days: int | None  # PAYOUT_RESERVE_DAYS: 7 to 14; empty: by the creator's record; 0: double alone
    payout_minimum_cents: int  # PAYOUT_MINIMUM_CENTS: the least that one payout to a creator carries
    referral_bps: (
        int  # REFERRAL_BPS: what a referrer gets of each prediction, out of the platform's share; basis points
    )
    usage_months_kept: int  # USAGE_MONTHS_KEPT: whole months of single predictions, 25 by default; 0: all of them
    search_encoder: (
        str  # SEARCH_ENCODER: folder of model.onnx and tokenizer.json; empty: the packages'; off: words alone
    )
    cors_origins: frozenset[str]  # CORS_ORIGINS: pages that may call /v1 from a browser; empty: none
    metrics_token: str  # METRICS_TOKEN: ≥ 32 characters; the bearer token of /metrics; empty: there is no /metrics
    mail: Mail  # EMAIL_URL: smtp://user:password@host:587; see config/mail.py
    email_from: str  # EMAIL_FROM: sender of every mail; by default Intarsia <no-reply@…>, with the host of PUBLIC_URL
    support_email: str  # SUPPORT_EMAIL: where people write to, of appeals too; empty: support@ the host of PUBLIC_URL
    debug: bool  # DEBUG: 1 shows tracebacks; never in production
    log_level: str  # LOG_LEVEL

    @classmethod
    def load(cls, source: Mapping[str, str] = os.environ) -> Env:
        """Parse and validate `source`. Raises EnvError."""
        secrets = {name: _need(source, name) for name in ("SECRET_KEY", "API_KEY_PEPPER")}
        for name, value in secrets.items():
            if len(value) < 32:
                raise EnvError(f"{name} must be at least 32 characters long")
        level = source.get("LOG_LEVEL", "INFO").upper()
        if level not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
            raise EnvError("LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR")
        return cls(
            database_url=_url(source, "DATABASE_URL", ("postgresql", "postgres")),
            database_admin_url=_url(source, "DATABASE_ADMIN_URL", ("postgresql", "postgres", ""), default=""),
            valkey_url=_url(source, "VALKEY_URL", ("redis", "rediss", "unix")),
            secret_key=secrets["SECRET_KEY"],
            api_key_pepper=secrets["API_KEY_PEPPER"],
            replica_networks=_networks(source, "REPLICA_NETWORKS", PRIVATE_NETWORKS),
            webhook_networks=_networks(source, "WEBHOOK_NETWORKS", ""),
            trusted_proxies=_networks(source, "TRUSTED_PROXIES", ""),
            root_key_file=Path(_need(source, "ROOT_KEY_FILE")),
            blob_dir=Path(_need(source, "BLOB_DIR")),
            blob_bucket=_bucket(source),
            delivery_dir=Path(source.get("DELIVERY_DIR", "") or Path(_need(source, "BLOB_DIR")).parent / "deliveries"),
            public_url=_url(source, "PUBLIC_URL", ("http", "https")).rstrip("/"),
            api_url=_url(source, "API_URL", ("http", "https"), default=_need(source, "PUBLIC_URL")).rstrip("/"),
            stripe_api_key=_need(source, "STRIPE_API_KEY"),
            stripe_api_base=_url(source, "STRIPE_API_BASE", ("http", "https", ""), default=""),
            stripe_webhook_secret=_need(source, "STRIPE_WEBHOOK_SECRET"),
            rate_limit=_integer(source, "RATE_LIMIT", 100, 1, 100_000),
            stripe_tax=source.get("STRIPE_TAX", "1") == "1",
            platform_fee_bps=_integer(source, "PLATFORM_FEE_BPS", 2000, 0, 10_000),
            payout_reserve_days=_reserve_days(source),
            payout_minimum_cents=_integer(source, "PAYOUT_MINIMUM_CENTS", 2_500, 1, 100_000),
            referral_bps=_integer(source, "REFERRAL_BPS", 500, 0, 10_000),
            usage_months_kept=_usage_months(source),
            search_encoder=source.get("SEARCH_ENCODER", ""),
            cors_origins=_origins(source, "CORS_ORIGINS"),
            metrics_token=_metrics_token(source),
            mail=_mail(source),
            email_from=source.get("EMAIL_FROM", ""),
            support_email=source.get("SUPPORT_EMAIL", ""),
            debug=source.get("DEBUG", "0") == "1",
            log_level=level,
        )
