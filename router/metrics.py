"""What the router counts, and its Prometheus text. Label sets are bounded: endpoints, instances in the routing, and
fixed words."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate

from router.instances import Instance
from router.routing import Routing

DECISION_BOUNDS_S = (5e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4, 6.4e-4, 1e-3, 5e-3, 2e-2)
LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

Labels = tuple[str, ...]
Counts = dict[Labels, int]


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """Plain numbers on one event loop, so no locks. The first label is the endpoint, "" before one is known."""

    def __init__(self) -> None:
        self.requests: Counts = defaultdict(int)  # endpoint, instance, code
        self.errors: Counts = defaultdict(int)  # endpoint, reason
        self.retries: Counts = defaultdict(int)  # endpoint, reason
        self.choices: Counts = defaultdict(int)  # endpoint, strategy, reason
        self.prompt_tokens: Counts = defaultdict(int)  # endpoint, instance
        self.cached_tokens: Counts = defaultdict(int)  # endpoint, instance
        self.reloads: Counts = {("loaded",): 0, ("rejected",): 0}
        self.decision: dict[Labels, Histogram] = defaultdict(lambda: Histogram(DECISION_BOUNDS_S))  # strategy
        self.duration: dict[Labels, Histogram] = defaultdict(lambda: Histogram(LATENCY_BOUNDS_S))  # endpoint
        # Streams only: there the first byte is the first token.
        self.ttft: dict[Labels, Histogram] = defaultdict(lambda: Histogram(LATENCY_BOUNDS_S))  # endpoint, strategy

    def forget_instances(self, current: Iterable[Instance]) -> None:
        """Drop the series of instances that left: pods come and go for ever."""
        names = {instance.name for instance in current}
        for counts in (self.requests, self.prompt_tokens, self.cached_tokens):
            for labels in [labels for labels in counts if labels[1] and labels[1] not in names]:
                del counts[labels]

    def render(self, routing: Routing) -> bytes:
        """Prometheus text format 0.0.4."""
        lines: list[str] = []
        _counter(lines, "requests_total", "Requests answered.", ("endpoint", "instance", "code"), self.requests)
        _counter(lines, "errors_total", "Requests that failed, by reason.", ("endpoint", "reason"), self.errors)
        _counter(lines, "retries_total", "Attempts made again, by reason.", ("endpoint", "reason"), self.retries)
        _counter(lines, "choices_total", "Choices by reason.", ("endpoint", "strategy", "reason"), self.choices)
        _counter(lines, "reloads_total", "Routing files read, by result.", ("result",), self.reloads)
        by_instance = ("endpoint", "instance")
        _counter(lines, "prompt_tokens_total", "Prompt tokens, as engines report.", by_instance, self.prompt_tokens)
        _counter(lines, "cached_tokens_total", "Of these, from a prefix cache.", by_instance, self.cached_tokens)
        _gauge_in_flight(lines, routing)
        _histogram(lines, "decision_seconds", "Reading the prefix and choosing.", ("strategy",), self.decision)
        _histogram(lines, "request_seconds", "From the whole request to the last byte.", ("endpoint",), self.duration)
        _histogram(lines, "ttft_seconds", "To a stream's first byte.", ("endpoint", "strategy"), self.ttft)
        return "\n".join([*lines, ""]).encode()


def _labels(names: Labels, values: Labels, *more: str) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
    return "{" + ",".join([*pairs, *more]) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _header(lines: list[str], name: str, text: str, kind: str) -> str:
    lines += (f"# HELP warmpath_router_{name} {text}", f"# TYPE warmpath_router_{name} {kind}")
    return f"warmpath_router_{name}"


def _counter(lines: list[str], name: str, text: str, names: Labels, counts: Counts) -> None:
    full = _header(lines, name, text, "counter")
    lines += (f"{full}{_labels(names, values)} {count}" for values, count in sorted(counts.items()))


def _gauge_in_flight(lines: list[str], routing: Routing) -> None:
    full = _header(lines, "in_flight", "Requests an instance works on now.", "gauge")
    for endpoint in routing.endpoints.values():
        for instance in endpoint.instances:
            labels = _labels(("endpoint", "instance"), (endpoint.name, instance.name))
            lines.append(f"{full}{labels} {instance.in_flight}")


def _histogram(lines: list[str], name: str, text: str, names: Labels, histograms: Mapping[Labels, Histogram]) -> None:
    full = _header(lines, name, text, "histogram")
    for values, histogram in sorted(histograms.items()):
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
            le = f'le="{bound}"'
            lines.append(f"{full}_bucket{_labels(names, values, le)} {count}")
        lines.append(f"{full}_sum{_labels(names, values)} {histogram.total:.9g}")
        lines.append(f"{full}_count{_labels(names, values)} {sum(histogram.counts)}")
