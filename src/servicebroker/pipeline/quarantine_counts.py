"""Counts the messages that a run has put into quarantine, by message type and reason, and checks their limits.

The sink runs in a process of Spark and cannot return counts to the run. So the sink writes them to a file beside the
checkpoints, and the run reads the file when Spark reports a batch. A run removes the file at its start.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.wording import counted
from servicebroker.pipeline.definition import Pipeline, QueueRule

if TYPE_CHECKING:
    import pyarrow as pa

Counts = Counter[tuple[str, str]]  # number of messages by message type and reason
EXIT_CODE = 3  # exit code of a run that exceeds a quarantine limit


class TooManyQuarantined(InstanceError):
    """The run has exceeded a quarantine limit. All readable messages are written."""

    exit_code = EXIT_CODE


def counts_path(pipeline: Pipeline, queue: QueueRule) -> Path:
    """Return the path of the file with the quarantine counts of a queue's query."""
    checkpoint = pipeline.checkpoint(queue)
    return checkpoint.with_name(f"_quarantined_{checkpoint.name}.json")


def count_quarantined(quarantined: pa.Table) -> Counts:
    """Count quarantine rows by message type and reason."""
    names = ["message_type_name", "reason"]
    groups = quarantined.select(names).group_by(names).aggregate([([], "count_all")])
    return Counter(
        {(str(row["message_type_name"] or ""), str(row["reason"])): row["count_all"] for row in groups.to_pylist()}
    )


def write_counts(path: Path, batch: int, counts: Counts) -> None:
    """Add the counts of a batch to the file. Counts of a repeated batch replace the earlier ones."""
    known = _read(path)
    before = known["batches"] if known["last"] < batch else _without_last(known)
    content = {"last": batch, "counts": _rows(counts), "batches": _rows(before + counts)}
    path.parent.mkdir(parents=True, exist_ok=True)
    new_file = path.with_suffix(".new")
    new_file.write_text(json.dumps(content), encoding="utf-8")
    new_file.replace(path)


def read_counts(path: Path) -> Counts:
    """Return the counts of all batches since the run began."""
    counts: Counts = _read(path)["batches"]
    return counts


def remove_counts(path: Path) -> None:
    """Remove the counts of an earlier run."""
    path.unlink(missing_ok=True)


def by_message_type(counts: Counts) -> dict[str, dict[str, int]]:
    """Return counts as nested dictionaries: message type, reason, number."""
    reasons_by_type: dict[str, dict[str, int]] = {}
    for (message_type, reason), number in sorted(counts.items()):
        reasons_by_type.setdefault(message_type, {})[reason] = number
    return reasons_by_type


def describe(counts: Counts) -> str:
    """Return counts as a phrase, the largest first: "Order: malformed 3, Order: too large 1"."""
    return ", ".join(
        f"{message_type}: {reason} {number:,}"
        for (message_type, reason), number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )


def limits_of(pipeline: Pipeline) -> dict[str, int]:
    """Return the quarantine limits per run, by message type, of the rules that have one."""
    return {
        rule.message_type: rule.maximum_quarantined
        for rule in pipeline.messages
        if rule.maximum_quarantined is not None
    }


def check_limits(counts: Counts, limits: Mapping[str, int], table: str, *, fails_on_any: bool) -> None:
    """Compare the counts of a run with its limits. `fails_on_any`: a single quarantined message exceeds the limit.

    Raises:
        TooManyQuarantined: a count exceeds its limit.
    """
    problems = []
    for message_type, limit in limits.items():
        type_counts = Counter({key: number for key, number in counts.items() if key[0] == message_type})
        if type_counts.total() > limit:
            problems.append(
                f"{counted(type_counts.total(), 'message')} of the type '{message_type}' went into quarantine in this "
                f"run, and its rule allows {limit:,} ({describe(type_counts)})."
            )
    if fails_on_any and counts and not problems:
        problems.append(f"{counted(counts.total(), 'message')} went into quarantine in this run ({describe(counts)}).")
    if problems:
        raise TooManyQuarantined(
            f"{' '.join(problems)} Readable messages are written. Check the table '{table}', correct the rule, and "
            "run 'servicebroker pipeline replay'."
        )


class _CountsText(msgspec.Struct):
    """The content of the file: the last batch, its counts, and the counts of all batches."""

    last: int
    counts: list[tuple[str, str, int]]
    batches: list[tuple[str, str, int]]


def _read(path: Path) -> dict[str, Any]:
    """Return the content of the file.

    Raises:
        InstanceError: the file cannot be read or is invalid.
    """
    try:
        content = msgspec.json.decode(read_file(path), type=_CountsText)
    except FileNotFoundError:
        return {"last": -1, "counts": Counter(), "batches": Counter()}
    except (OSError, ValueError, RecursionError) as problem:
        raise InstanceError(
            f"The quarantine counts in '{path}' cannot be read: {problem}. Remove the file: the next run creates it."
        ) from None
    return {"last": content.last, "counts": _counts(content.counts), "batches": _counts(content.batches)}


def _without_last(known: Mapping[str, Any]) -> Counts:
    counts: Counts = known["batches"] - known["counts"]
    return counts


def _rows(counts: Counts) -> list[tuple[str, str, int]]:
    return [(*key, number) for key, number in sorted(counts.items())]


def _counts(rows: list[tuple[str, str, int]]) -> Counts:
    return Counter({(message_type, reason): number for message_type, reason, number in rows})
