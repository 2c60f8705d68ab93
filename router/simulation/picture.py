"""A picture of a simulation, as SVG: hit rate, times to first token, and how evenly requests were spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import log10

from router.simulation.results import Result

_ROW, _TOP, _LABELS, _PANEL, _GAP = 26, 64, 190, 230, 36
_INK, _FAINT, _FILL, _ACCENT = "#1f2933", "#d5dbe1", "#8fb3d9", "#d9822b"
_FAST_S = 0.01


def draw(results: Sequence[Result], title: str) -> str:
    """The whole document. Times are on a logarithmic axis from 10 ms."""
    height = _TOP + _ROW * len(results) + 40
    width = _LABELS + 3 * (_PANEL + _GAP)
    slowest = max(1.0, *(result.ttft_p99_s for result in results)) if results else 1.0
    decades = log10(slowest / _FAST_S)
    panels = [
        _panel(0, "hit rate", results, lambda result: _bar(result.hit_rate, f"{result.hit_rate:.1%}")),
        _panel(1, "TTFT p50, p95, p99 (log)", results, lambda result: _times(result, decades)),
        _panel(2, "busiest instance, share / mean", results, _balance),
    ]
    labels = [
        _text(_LABELS - 10, _TOP + _ROW * at + 17, result.strategy, anchor="end", bold=result.strategy.isupper())
        for at, result in enumerate(results)
    ]
    body = "\n".join([_text(12, 24, title, bold=True), *labels, *panels])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _panel(column: int, title: str, results: Sequence[Result], mark: Callable[[Result], str]) -> str:
    left = _LABELS + column * (_PANEL + _GAP)
    rows = [
        f'<g transform="translate({left} {_TOP + _ROW * at})"><path d="M0 22H{_PANEL}" stroke="{_FAINT}"/>'
        f"{mark(result)}</g>"
        for at, result in enumerate(results)
    ]
    return "\n".join([_text(left, _TOP - 12, title), *rows])


def _bar(share: float, label: str, fill: str = _FILL) -> str:
    length = max(0.0, min(1.0, share)) * (_PANEL - 50)
    return f'<rect y="5" width="{length:.1f}" height="14" fill="{fill}"/>' + _text(length + 6, 17, label)


def _times(result: Result, decades: float) -> str:
    def x(seconds: float) -> float:
        return log10(max(_FAST_S, seconds) / _FAST_S) / decades * (_PANEL - 50)

    p50, p95, p99 = x(result.ttft_p50_s), x(result.ttft_p95_s), x(result.ttft_p99_s)
    return (
        f'<path d="M{p50:.1f} 12H{p99:.1f}" stroke="{_FILL}" stroke-width="4"/>'
        f'<circle cx="{p50:.1f}" cy="12" r="5" fill="{_INK}"/><circle cx="{p95:.1f}" cy="12" r="4" fill="{_ACCENT}"/>'
        f'<circle cx="{p99:.1f}" cy="12" r="3" fill="{_ACCENT}"/>' + _text(p99 + 8, 17, f"{result.ttft_p95_s:.2f} s")
    )


def _balance(result: Result) -> str:
    over = result.share_max_over_mean
    return _bar((over - 1.0) / 2.0, f"{over:.2f}", _ACCENT if over > 1.3 else _FILL)


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}"{weight}>{escape(text)}</text>'
