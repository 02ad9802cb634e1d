"""The pictures: throughput by threads, cost by details, the time line of an update."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.lab.figures import Absent, Findings
from benchmarks.lab.proxy import BACK, THERE

Picture = Callable[[Findings, Path], None]


def _figure(rows: int, width: float, height: float) -> tuple[Any, Any]:
    """:raises Absent: matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415  # from the dependency group "bench"
    except ImportError:
        raise Absent("matplotlib is not installed (dependency group bench)") from None
    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(max(rows, 1), 1, figsize=(width, height * rows), squeeze=False)
    return figure, [row[0] for row in axes]


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def _legend(axis: Any) -> None:
    """Name the curves next to the axes, where there is no curve."""
    axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.02, 1))


def _of(findings: Findings, what: str) -> Mapping[str, Any]:
    """Return the series by server; :raises Absent: nothing was measured."""
    ending = f".{what}"
    found = {n.removesuffix(ending): s for n, s in findings.series.items() if n.endswith(ending)}
    found = {name: series for name, series in found.items() if any(series.values())}
    if not found:
        raise Absent(f"no {what.replace('_', ' ')} was measured")
    return found


def throughput(findings: Findings, path: Path) -> None:
    """Draw updates a second by number of threads."""
    series = _of(findings, "curve")
    figure, axes = _figure(len(series), 7, 4.5)
    for axis, (server, curves) in zip(axes, series.items(), strict=True):
        for name, points in curves.items():
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set(title=findings.servers[server], xlabel="threads", ylabel="updates a second")
        axis.set_xscale("log", base=2)
        threads = sorted({threads for points in curves.values() for threads, _ in points})
        axis.set_xticks(threads, [str(number) for number in threads])
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        _legend(axis)
    _save(figure, path)


def costs(findings: Findings, path: Path) -> None:
    """Draw the milliseconds of an update by number of details in its document."""
    series = _of(findings, "costs")
    figure, axes = _figure(len(series), 7, 4)
    for axis, (server, curves) in zip(axes, series.items(), strict=True):
        for name, points in curves.items():
            sizes, times, _ = zip(*points, strict=True)
            axis.plot(sizes, times, marker="o", label=name)
        axis.set(title=findings.servers[server], xlabel="details", ylabel="ms an update")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        _legend(axis)
    _save(figure, path)


def time_lines(findings: Findings, path: Path) -> None:
    """Draw what one locked update sends over time, and when it holds the lock."""
    series = _of(findings, "time_lines")
    figure, axes = _figure(len(series), 9, 5)
    for axis, (server, lines) in zip(axes, series.items(), strict=True):
        sent = [
            f"{name}:  {_line(axis, row, chunks)}"
            for row, (name, chunks) in enumerate(lines.items())
        ]
        axis.set_yticks(range(len(lines)), list(lines))
        axis.set_ylim(len(lines) - 0.5, -0.8)  # the first line at the top
        axis.text(0, -0.2, "\n\n".join(sent), transform=axis.transAxes, fontsize=6, va="top")
        title = f"{findings.servers[server]}, 1 ms each way: bar = the lock is held"
        axis.set(title=title, xlabel="ms")
    _save(figure, path)


def _line(axis: Any, row: int, chunks: Any) -> str:
    """Draw an update's messages, each with a number; return the statements by number."""
    # at, direction, statements, locks, releases; JSON returns the same
    locked = next(n for n, chunk in enumerate(chunks) if chunk[3])
    granted = next((chunk[0] for chunk in chunks[locked:] if chunk[1] == BACK), chunks[locked][0])
    released = next(chunk[0] for chunk in chunks[locked:] if chunk[4])
    axis.barh(row, (released - granted) * 1000, left=granted * 1000, height=0.5, alpha=0.3)
    messages = [(at, sent) for at, direction, sent, *_ in chunks if direction == THERE]
    for number, (at, _) in enumerate(messages, 1):
        axis.plot(at * 1000, row, marker="|", color="black")
        axis.annotate(str(number), (at * 1000, row - 0.3), fontsize=7, ha="center", va="bottom")
    return "\n".join(
        textwrap.wrap(
            "   ".join(
                f"{number} {'; '.join(sent)}" for number, (_, sent) in enumerate(messages, 1)
            ),
            150,
        )
    )


PICTURES: Mapping[str, Picture] = {
    "hot_document": throughput,
    "combined": throughput,
    "scale": throughput,
    "details": costs,
    "layers": time_lines,
}
