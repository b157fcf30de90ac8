"""Prometheus metrics of one replica. Gauges and counters are read from the engine when scraped; latencies are observed
here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.engine import Engine

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


class Metrics:
    """One registry for each app, so that several apps in one process do not mix."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
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
        """Prometheus text format."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats, adapters = self._engine.stats, self._engine.adapters
        for name, text, value in (
            ("batch_size", "Sequences in the last step", stats.batch_size),
            ("adapters_in_batch", "Distinct adapters in the last step", stats.adapters_in_batch),
            ("max_adapters_in_one_batch", "Most distinct adapters ever in one step", stats.max_adapters_in_one_batch),
            ("running_requests", "Sequences being computed", stats.running),
            ("queue_depth", "Sequences waiting", stats.waiting),
            ("kv_blocks_used", "KV blocks held by running sequences", stats.kv_blocks_used),
            ("kv_blocks_total", "KV blocks there are", stats.kv_blocks_total),
            ("step_seconds", "Duration of the last step", stats.step_seconds),
        ):
            yield GaugeMetricFamily(f"intarsia_{name}", text, value)
        for name, text, value in (
            ("steps", "Forward passes", stats.steps),
            ("prompt_tokens", "Prompt tokens computed (cache hits are not)", stats.prompt_tokens),
            ("generated_tokens", "Tokens sampled", stats.generated_tokens),
            ("preemptions", "Sequences computed again for lack of KV", stats.preemptions),
            ("batches_with_several_adapters", "Steps with two or more adapters", stats.batches_with_several_adapters),
            ("prefix_cache_hit_blocks", "KV blocks found in the prefix cache", stats.prefix_hits),
            ("busy_seconds", "Time spent in steps", stats.busy_seconds),
            ("adapter_loads", "Adapters copied into the pool", adapters.loads),
            ("adapter_evictions", "Adapters zeroed and removed", adapters.evictions),
        ):
            yield CounterMetricFamily(f"intarsia_{name}", text, value)
        resident = GaugeMetricFamily("intarsia_adapters", "Adapters by state", labels=["state"])
        for state, count in Counter(adapters.states().values()).items():
            resident.add_metric([state], count)
        yield resident
