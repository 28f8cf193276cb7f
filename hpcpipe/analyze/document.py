"""A report as the document of `analyze --json`; keys once there are kept. It computes nothing but lists."""

from dataclasses import asdict, fields
from typing import Any

from hpcpipe.analyze.accounting import NUM_CLASSES
from hpcpipe.analyze.compare import CONFIDENCE, Comparison, Difference
from hpcpipe.analyze.results import RankReport, Report
from hpcpipe.plan import TimeClass

FORMAT = "hpcpipe-analysis"
SCHEMA_VERSION = "1.2.0"


def to_json(report: Report) -> dict[str, Any]:
    """Return the document of one run; times in ns."""
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "run": report.run,
        "job_id": report.job_id,
        **asdict(report.description),
        "world_size": report.world_size,
        "mesh": list(report.mesh),
        "steps": list(report.steps),
        "finished": report.finished,
        "wall_ns": report.wall_ns,
        "classes": _named(report.classes),
        "ranks": [_rank(rank) for rank in report.ranks],
        "bubble_ratio": report.bubble_ratio,
        "efficiency": asdict(report.efficiency),
        "throughput": asdict(report.throughput),
        "step_ns": asdict(report.step_ns),
        "per_step": _per_step(report),
        "microbatch_ns": report.microbatch_ns,
        "critical_path": [entry._asdict() for entry in report.critical_path],
        "critical_path_steps": list(report.listed_steps),
        "critical_path_shares": {
            "kinds": report.path_kinds,
            "stages": [{"stage": stage, "ns": ns} for stage, ns in report.path_stages.items()],
            "edges": [{"from": one, "to": two, "ns": ns} for (one, two), ns in report.path_edges.items()],
            "culprits": [asdict(culprit) for culprit in report.culprits],
        },
        "longest_waits": [asdict(wait) for wait in report.longest_waits],
        "waited_for": [
            {"rank": rank, "peer": peer, "class": time_class.name.lower(), "ns": ns}
            for (rank, peer, time_class), ns in sorted(report.waited_for.items())
        ],
        "decisions": [decided._asdict() for decided in report.decisions],
        "dispatch_overhead_ns_per_task": report.dispatch_overhead_ns_per_task,
        "gaps": list(report.gaps),
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return what `analyze --json` says of two runs; differences are second minus first."""
    classes = {each.name.lower(): _difference(value) for each, value in comparison.classes.items()}
    values = asdict(comparison)
    return {
        **values,
        "confidence": CONFIDENCE,
        "step": _difference(comparison.step),
        "relative": _difference(comparison.relative),
        "classes": classes,
    }


def _difference(value: Difference | None) -> dict[str, Any] | None:
    return None if value is None else {**asdict(value), "certain": value.certain}


def _per_step(report: Report) -> dict[str, Any]:
    """Return columns with an entry a step; classes are summed over ranks, those without any time left out."""
    times = report.step_times
    classes = {
        TimeClass(i).name.lower(): report.step_classes[:, i].tolist()
        for i in range(1, NUM_CLASSES)
        if report.step_classes[:, i].any()
    }
    efficiencies = {name: column.tolist() for name, column in times.efficiencies(len(report.ranks)).items()}
    return {
        "step": report.step_numbers.tolist(),
        "wall_ns": times.wall.tolist(),
        "k": list(report.step_k),
        "classes": classes,
        **efficiencies,
    }


def _named(classes: dict[TimeClass, int]) -> dict[str, int]:
    return {each.name.lower(): ns for each, ns in classes.items()}


def _rank(rank: RankReport) -> dict[str, Any]:
    values = {field.name: getattr(rank, field.name) for field in fields(rank)}
    return {**values, "classes": _named(rank.classes)}
