"""Limits on guessing passwords that no stranger can turn against the owner of an account.

Wrong passwords are counted where they come from: by account, network and device together. So the owner, elsewhere, is
never locked out by them. Guessing from many places is counted by account; once that is too much, only places that have
a proof go on: a device that has signed in to this account before (a signed cookie), a passkey, or the link of a new
password, which is mailed to the account's address. Counters are in Valkey, so that every process counts together.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from dataclasses import dataclass

from django.core import signing
from django.core.cache import cache
from django.http import HttpRequest, HttpResponseBase

from marketplace.accounts.models import User

PER_PLACE, PLACE_SECONDS = 10, 15 * 60
PER_ACCOUNT, ACCOUNT_SECONDS = 100, 60 * 60  # from all places without a proof
NETWORK_BITS = {4: 24, 6: 56}  # what one subscriber can choose from
COOKIE = "known_device"
COOKIE_SECONDS = 365 * 24 * 3600
_SALT = "marketplace.accounts.sign_in"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sign-in to one account comes from.

    account: the e-mail as typed, in small letters
    address: the client's, as text
    device: the random name of a device that has signed in to this account before, or empty
    """

    account: str
    address: str
    device: str = ""

    @property
    def key(self) -> str:
        """Return the name of the place's counter: a known device has one of its own, wherever it is."""
        return _digest(self.account, self.device or _network(self.address))


def place_of(request: HttpRequest, email: str) -> Place:
    """Return where a request to sign in comes from. A proof for another account is none."""
    account = email.strip().lower()
    try:
        owner, device = signing.loads(request.COOKIES.get(COOKIE, ""), salt=_SALT, max_age=COOKIE_SECONDS)
    except (signing.BadSignature, TypeError, ValueError):
        owner, device = "", ""
    return Place(account, request.META.get("REMOTE_ADDR", ""), device if owner == _digest(account) else "")


def is_allowed(place: Place) -> bool:
    """Return whether a password may be tried, and count it; `forget` takes a right one back."""
    if not _take(_of_place(place), PER_PLACE, PLACE_SECONDS):
        return False
    if place.device or _take(_of_account(place), PER_ACCOUNT, ACCOUNT_SECONDS):
        return True
    _give_back(_of_place(place))
    return False


def forget(place: Place) -> None:
    """Take back the try that turned out right: only wrong ones count."""
    _give_back(_of_place(place))
    if not place.device:
        _give_back(_of_account(place))


def forget_all(place: Place) -> None:
    """Start anew, for somebody who has shown that the account's address is theirs."""
    cache.delete_many([_of_place(place), _of_account(place)])


def remember_device(request: HttpRequest, response: HttpResponseBase, user: User) -> None:
    """Let this device, which has just signed in, be known as one of the user's."""
    known = place_of(request, user.email).device
    value = signing.dumps([_digest(user.email.lower()), known or secrets.token_urlsafe(16)], salt=_SALT)
    response.set_cookie(
        COOKIE, value, max_age=COOKIE_SECONDS, httponly=True, samesite="Lax", secure=request.is_secure()
    )


def _of_place(place: Place) -> str:
    return f"sign-in-place:{place.key}"


def _of_account(place: Place) -> str:
    return f"sign-in-account:{_digest(place.account)}"


def _take(key: str, limit: int, seconds: int) -> bool:
    """Count one and return whether it is within the limit of this window; what is above it is not counted."""
    cache.add(key, 0, timeout=seconds)
    try:
        count = int(cache.incr(key))
    except ValueError:  # it expired in between
        cache.set(key, 1, timeout=seconds)
        return True
    if count > limit:
        _give_back(key)
    return count <= limit


def _give_back(key: str) -> None:
    try:
        cache.decr(key)
    except ValueError:
        return  # its window has ended


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, NETWORK_BITS[found.version]), strict=False))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
