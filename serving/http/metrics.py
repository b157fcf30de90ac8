"""Prometheus metrics of one replica. Gauges and counters are read from the engine when scraped; latencies are observed
here. docs/operations.md lists every name."""

from __future__ import annotations

import hmac
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.core import LatencyClass
from serving.engine import Engine
from serving.speculation import Source

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


LOOPBACK = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number that another part of the replica adds; `read` is called at each scrape."""

    name: str
    text: str
    read: Callable[[], float]


def may_scrape(peer: str | None, authorization: str) -> bool:
    """Return whether a scrape is answered: with the token of `METRICS_TOKEN`, without it from this machine alone."""
    token = os.environ.get("METRICS_TOKEN", "")
    if token:
        return hmac.compare_digest(authorization.removeprefix("Bearer ").encode(), token.encode())
    return peer is None or (peer in LOOPBACK)


class Metrics:
    """One registry per app, so that several apps in one process do not mix."""

    def __init__(self, engine: Engine, gauges: Sequence[Gauge] = ()) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine, gauges))
        self.ttft = Histogram(
            "intarsia_ttft_seconds", "Request accepted to first token", registry=self.registry, buckets=_SECONDS
        )
        self.itl = Histogram(
            "intarsia_itl_seconds", "Time between tokens of one completion", registry=self.registry, buckets=_SECONDS
        )
        self.duration = Histogram(
            "intarsia_request_seconds", "Request accepted to last token", registry=self.registry, buckets=_SECONDS
        )
        self.finished = PrometheusCounter(
            "intarsia_requests", "Requests by how they ended", ["reason"], registry=self.registry
        )

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    def __init__(self, engine: Engine, gauges: Sequence[Gauge]) -> None:
        self._engine, self._gauges = engine, gauges

    def collect(self) -> Iterator[Metric]:
        yield from self._numbers()
        yield from self._drafts()
        yield from self._kv_levels()
        yield from self._classes()
        yield from self._adapters()
        for gauge in self._gauges:
            yield GaugeMetricFamily(f"intarsia_{gauge.name}", gauge.text, gauge.read())

    def _numbers(self) -> Iterator[Metric]:
        stats = self._engine.stats
        for name, text, value in (
            ("batch_size", "Sequences in the last step", stats.batch_size),
            ("adapters_in_batch", "Distinct adapters in the last step", stats.adapters_in_batch),
            ("max_adapters_in_one_batch", "Most distinct adapters ever in one step", stats.max_adapters_in_one_batch),
            ("running_requests", "Sequences being computed", stats.running),
            ("kv_blocks_used", "KV blocks held by running sequences", stats.kv_blocks_used),
            ("kv_blocks_total", "KV blocks there are", stats.kv_blocks_total),
            ("step_seconds", "Duration of the last step", stats.step_seconds),
            ("predicted_step_seconds", "What the last step was expected to take", stats.predicted_step_seconds),
            ("step_prediction_error", "Running mean of |predicted / measured - 1|", stats.step_prediction_error),
            ("fairness_gap", "Distance of waiting tenants' counters, in prompt tokens", stats.fairness_gap),
        ):
            yield GaugeMetricFamily(f"intarsia_{name}", text, value)
        for name, text, value in (
            ("steps", "Forward passes", stats.steps),
            ("prompt_tokens", "Prompt tokens computed (cache hits are not)", stats.prompt_tokens),
            ("generated_tokens", "Tokens sampled", stats.generated_tokens),
            ("sequences_finished", "Sequences that ended", stats.finished),
            ("sequences_failed", "Sequences that ended with an error", stats.failed),
            ("preemptions", "Sequences computed again for lack of KV", stats.preemptions),
            ("aged", "Sequences that went first because they had waited too long", stats.aged),
            ("batches_with_several_adapters", "Steps with two or more adapters", stats.batches_with_several_adapters),
            ("prefix_cache_hit_blocks", "KV blocks found in the prefix cache", stats.prefix_hits),
            ("prefix_cache_lookup_tokens", "Prompt tokens looked up in the cache", stats.prefix_lookup_tokens),
            ("prefix_cache_hit_tokens", "Prompt tokens found in the cache", stats.prefix_hit_tokens),
            ("prefix_cache_evictions", "Cached KV blocks given to others", stats.prefix_evictions),
            ("busy_seconds", "Time spent in steps", stats.busy_seconds),
        ):
            yield CounterMetricFamily(f"intarsia_{name}", text, value)

    def _drafts(self) -> Iterator[Metric]:
        stats = self._engine.stats
        drafted = CounterMetricFamily("intarsia_drafted_tokens", "Guessed tokens verified", labels=["source"])
        accepted = CounterMetricFamily("intarsia_accepted_tokens", "Guesses the model agreed with", labels=["source"])
        for source in Source:
            drafted.add_metric([source.value], stats.drafted.get(source, 0))
            accepted.add_metric([source.value], stats.accepted.get(source, 0))
        yield from (drafted, accepted)
        yield GaugeMetricFamily("intarsia_answer_books", "Books of past answers", stats.answer_books)
        yield GaugeMetricFamily("intarsia_answer_book_bytes", "Memory of past answers", stats.answer_book_bytes)

    def _kv_levels(self) -> Iterator[Metric]:
        stats = self._engine.stats
        blocks = GaugeMetricFamily("intarsia_kv_level_blocks", "KV blocks below the pool", labels=["level"])
        total = GaugeMetricFamily("intarsia_kv_level_blocks_total", "KV blocks that fit", labels=["level"])
        counters = {
            name: CounterMetricFamily(f"intarsia_kv_{name}", text, labels=["level"])
            for name, text in _LEVEL_COUNTERS.items()
        }
        for level, counts in stats.kv_levels.items():
            blocks.add_metric([level], counts.blocks)
            total.add_metric([level], counts.slots)
            for name, family in counters.items():
                family.add_metric([level], getattr(counts, name))
        restores = CounterMetricFamily("intarsia_kv_restores", "Restores by how they ended", labels=["outcome"])
        restores.add_metric(["done"], stats.restores.done)
        restores.add_metric(["given_up"], stats.restores.given_up)
        yield from (blocks, total, *counters.values(), restores)

    def _classes(self) -> Iterator[Metric]:
        stats = self._engine.stats
        depth = GaugeMetricFamily("intarsia_queue_depth", "Sequences waiting", labels=["class"])
        longest = GaugeMetricFamily("intarsia_longest_wait_seconds", "Longest wait since start", labels=["class"])
        counters = {
            "arrived": CounterMetricFamily("intarsia_arrived", "Sequences that arrived", labels=["class"]),
            "answered": CounterMetricFamily("intarsia_answered", "Sequences with a first token", labels=["class"]),
            "preempted": CounterMetricFamily("intarsia_preempted", "Sequences preempted", labels=["class"]),
            "wait_seconds": CounterMetricFamily("intarsia_wait_seconds", "Time in the queue", labels=["class"]),
        }
        for latency in LatencyClass:
            name, counts = latency.name.lower(), stats.by_class.get(latency)
            depth.add_metric([name], stats.waiting_by_class.get(latency, 0))
            longest.add_metric([name], counts.longest_wait_seconds if counts else 0)
            for key, family in counters.items():
                family.add_metric([name], getattr(counts, key) if counts else 0)
        yield from (depth, longest, *counters.values())

    def _adapters(self) -> Iterator[Metric]:
        adapters = self._engine.adapters
        resident = GaugeMetricFamily("intarsia_adapters", "Adapters by state", labels=["state"])
        for state, count in Counter(adapters.states().values()).items():
            resident.add_metric([state], count)
        yield resident
        gauges, counters = adapters.gauges(), adapters.counters
        memory = GaugeMetricFamily("intarsia_adapter_memory_bytes", "Adapter memory by level", labels=["level"])
        levels = {
            "pool": gauges.pool_bytes,
            "extras": gauges.extra_bytes,
            "host": gauges.host_bytes,
            "locked": gauges.locked_bytes,
        }
        for level, size in levels.items():
            memory.add_metric([level], size)
        yield memory
        yield GaugeMetricFamily("intarsia_adapter_loads_queued", "Loads waiting for a worker", gauges.queued)
        for name, text in _ADAPTER_COUNTERS.items():
            yield CounterMetricFamily(f"intarsia_adapter_{name}", text, getattr(counters, name))
        seconds = CounterMetricFamily("intarsia_adapter_load_seconds", "Time in loads by stage", labels=["stage"])
        for stage, spent in adapters.seconds.snapshot().items():
            seconds.add_metric([stage], spent)
        yield seconds


_LEVEL_COUNTERS = {
    "spilled_blocks": "Blocks written to the level",
    "spilled_bytes": "Their bytes",
    "restored_blocks": "Blocks that came back to the pool from the level: its hits",
    "restored_bytes": "Their bytes",
    "restore_seconds": "Time in loads, without waiting for a worker",
    "spills_refused": "Evicted blocks not worth a place",
    "spills_dropped": "Evicted blocks that found the level busy",
    "copies_failed": "Blocks that could not be written or read",
}
_ADAPTER_COUNTERS = {
    "loads": "Adapters that became ready",
    "host_hits": "Loads that needed no decryption",
    "prefetches": "Loads that no request waited for",
    "blends": "Blends assembled",
    "evictions": "Adapters that left the pool, zeroed",
    "host_evictions": "Decrypted copies wiped",
    "drains": "Adapters closed to newcomers to make room",
    "returned": "Leases given back because the adapter lay idle",
    "failures": "Loads that failed",
    "revocations": "Adapters revoked",
    "bytes_loaded": "Bytes copied into the pool",
    "cold_seconds": "From the start of a load to ready",
}
