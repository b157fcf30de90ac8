"""Bounded places that many tenants use: at most a share of them for each, in turns, for a time, while the caller waits.

A tenant is an organization, or a network address before anybody is known. A place that becomes free goes to the waiting
tenant that holds the fewest, and among those in turns. `BOUNDS` has every such pool of
this process by its name, as docs/operations.md lists them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Tenant = Hashable
Result = TypeVar("Result")
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of one pool. places: in all, of one process; share: most places of one tenant; waiting: most callers
    of one tenant that wait for a place; seconds: most that a caller waits and is served, None where the work has an end
    of its own."""

    name: str
    places: int
    share: int
    waiting: int = 0
    seconds: float | None = None


BOUNDS: dict[str, Bound] = {}


def declared(bound: Bound) -> Bound:
    """Return the bound, which is known by its name from now on. Raises ValueError for two of one name."""
    if BOUNDS.setdefault(bound.name, bound) != bound:
        raise ValueError(f"there are two pools {bound.name!r}")
    return bound


class Full(Exception):
    """There is no place. `own`: the tenant has as many as it may have, others may find one."""

    def __init__(self, name: str, *, own: bool) -> None:
        super().__init__(f"{name}: {'the share is' if own else 'all places are'} taken")
        self.own = own


class Late(Exception):
    """The time of the pool is over."""


class Ended(Exception):
    """The caller has left, so its work goes no further."""


class _Waiter:
    """One caller that waits for a place; `granted` once it has one, which it may not know yet."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.granted = False

    def tell(self) -> bool:
        """Wake the caller up, from any thread. False: its event loop is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._wake)
            return True
        return False

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Shares:
    """The places of one pool. Thread-safe; callers of several event loops may wait."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.held: Counter[Tenant] = Counter()  # places, by tenant
        self._waiting: OrderedDict[Tenant, deque[_Waiter]] = OrderedDict()  # in turns
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def at_once(self, tenant: Tenant) -> Iterator[None]:
        """Hold a place that is free now. Raises Full."""
        with self._lock:
            self._require_free(tenant)
            self.held[tenant] += 1
        try:
            yield
        finally:
            self.give(tenant)

    @contextlib.asynccontextmanager
    async def place(self, tenant: Tenant) -> AsyncIterator[None]:
        """Hold a place, after waiting for it. Raises Full, and Late once the pool's time is over: also in the block."""
        limit = asyncio.timeout(self.bound.seconds)
        try:
            async with limit:
                await self.take(tenant)
                try:
                    yield
                finally:
                    self.give(tenant)
        except TimeoutError:
            if limit.expired():
                raise Late(self.bound.name) from None
            raise

    async def take(self, tenant: Tenant) -> None:
        """Take a place, which has to be given back. Raises Full where too many of the tenant wait."""
        with self._lock:
            if self._free(tenant) and tenant not in self._waiting:
                self.held[tenant] += 1
                return
            queue = self._waiting.get(tenant, ())
            if len(queue) >= self.bound.waiting:
                raise Full(self.bound.name, own=bool(queue) or not self._room(tenant))
            waiter = _Waiter()
            self._waiting.setdefault(tenant, deque()).append(waiter)
        try:
            await waiter.future
        except BaseException:
            self._withdraw(tenant, waiter)
            raise

    def give(self, tenant: Tenant) -> None:
        """Give a place back, from any thread."""
        with self._lock:
            self.held[tenant] -= 1
            if not self.held[tenant]:
                del self.held[tenant]
            self._grant()

    def waiting(self, tenant: Tenant) -> int:
        """Return how many callers of a tenant wait."""
        return len(self._waiting.get(tenant, ()))

    def _require_free(self, tenant: Tenant) -> None:
        if not self._free(tenant):
            raise Full(self.bound.name, own=not self._room(tenant))

    def _room(self, tenant: Tenant) -> bool:
        return self.held[tenant] < self.bound.share

    def _free(self, tenant: Tenant) -> bool:
        return self.held.total() < self.bound.places and self._room(tenant)

    def _grant(self) -> None:
        """Let callers in while there are places. The lock is held."""
        while self.held.total() < self.bound.places:
            able = [one for one in self._waiting if self._room(one)]
            if not able:
                return
            tenant = min(able, key=lambda one: self.held[one])  # the first of several that have as few
            waiter = self._waiting[tenant].popleft()
            self._waiting.move_to_end(tenant)
            self._forget_empty(tenant)
            if waiter.tell():
                waiter.granted = True
                self.held[tenant] += 1

    def _withdraw(self, tenant: Tenant, waiter: _Waiter) -> None:
        with self._lock:
            if not waiter.granted:
                self._waiting[tenant].remove(waiter)
                self._forget_empty(tenant)
                return
        self.give(tenant)

    def _forget_empty(self, tenant: Tenant) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]


@dataclass(eq=False)
class Ending:
    """What a thread sees of its caller: whether it has left."""

    over: bool = False
    _calls: list[Callable[[], object]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Raises Ended when the caller has left."""
        if self.over:
            raise Ended

    @contextlib.contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Make the call if the caller leaves during the block. Raises Ended when it has left."""
        with self._lock:
            self.check()
            self._calls.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(call)

    def end(self) -> None:
        """Note that the caller has left. The calls may take a moment, so a thread makes them."""
        self.over = True
        if self._calls:
            threading.Thread(target=self._call_all, name="ending", daemon=True).start()

    def _call_all(self) -> None:
        with self._lock:  # so none is made after its block
            for call in self._calls:
                call()


class Threads:
    """Work of tenants in the threads of one pool, one for each place."""

    def __init__(self, bound: Bound) -> None:
        """Start without a thread; each begins with its first work."""
        self.shares = Shares(bound)
        self._executor = ThreadPoolExecutor(bound.places, thread_name_prefix=bound.name.replace(" ", "-"))

    async def run(self, tenant: Tenant, work: Callable[[Ending], Result]) -> Result:
        """Return the result of `work`, which is told when its caller is cancelled or the pool's time is over.

        A place is free once its thread has returned. Raises Full, Late, and what the work raises.
        """
        ending = Ending()
        limit = asyncio.timeout(self.shares.bound.seconds)
        try:
            async with limit:
                await self.shares.take(tenant)
                return await asyncio.wrap_future(self._begun(tenant, work, ending))
        except TimeoutError:
            if limit.expired():
                raise Late(self.shares.bound.name) from None
            raise
        finally:
            ending.end()

    def close(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begun(self, tenant: Tenant, work: Callable[[Ending], Result], ending: Ending) -> Future[Result]:
        try:
            future = self._executor.submit(work, ending)
        except BaseException:
            self.shares.give(tenant)
            raise
        future.add_done_callback(lambda _: self.shares.give(tenant))
        return future


_MOST_OWNERS = 8  # of one entry: enough that one tenant cannot make it its own


class FairCache(Generic[Key, Value]):
    """At most `places` entries; over it, the tenant with the most loses the one that it used longest ago.

    So nobody's entries go because another one fills the cache: an entry stays while one of the last tenants that used
    it keeps it. `share` of its bound is what each keeps in any case, beside as many others as there are shares.
    Thread-safe.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self._entries: dict[Key, tuple[Value, OrderedDict[Tenant, None]]] = {}  # with those whose entry it is
        self._of: dict[Tenant, OrderedDict[Key, None]] = {}  # the one used longest ago first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, tenant: Tenant) -> Value | None:
        """Return the value, which is the tenant's as well from now on; None where there is none."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._own(key, tenant, found[1])
            return found[0]

    def put(self, key: Key, tenant: Tenant, value: Value) -> None:
        """Keep a value for a tenant."""
        with self._lock:
            _, owners = self._entries.get(key, (value, OrderedDict()))
            self._entries[key] = value, owners
            self._own(key, tenant, owners)
            while len(self._entries) > self.bound.places:
                largest = max(self._of, key=lambda one: len(self._of[one]))
                self._disown(next(iter(self._of[largest])), largest)

    def _own(self, key: Key, tenant: Tenant, owners: OrderedDict[Tenant, None]) -> None:
        mine = self._of.setdefault(tenant, OrderedDict())
        mine[key] = owners[tenant] = None
        mine.move_to_end(key)
        owners.move_to_end(tenant)
        if len(owners) > _MOST_OWNERS:
            self._disown(key, next(iter(owners)))

    def _disown(self, key: Key, tenant: Tenant) -> None:
        owners = self._entries[key][1]
        del owners[tenant], self._of[tenant][key]
        if not self._of[tenant]:
            del self._of[tenant]
        if not owners:
            del self._entries[key]
