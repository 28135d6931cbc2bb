"""How many messages a run has put into quarantine, by rule and reason, and how many it may.

The sink runs in a process of Spark, which has no way to give figures to the run. So it notes them in a file beside the
checkpoints, and the run reads the file when Spark reports a batch. A run removes the file before it begins.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.model.wording import counted
from servicebroker.pipeline.definition import Pipeline, QueueRule

if TYPE_CHECKING:
    import pyarrow as pa

Counts = Counter[tuple[str, str]]  # messages by message type and reason
EXIT_CODE = 3  # of a run in which more went into quarantine than may


class TooManyQuarantined(InstanceError):
    """More messages of a run are in quarantine than may be. All that could be read has landed."""

    exit_code = EXIT_CODE


def place(pipeline: Pipeline, queue: QueueRule) -> Path:
    """Where the sink of a queue's query notes what has gone into quarantine."""
    checkpoint = pipeline.checkpoint(queue)
    return checkpoint.with_name(f"_quarantined_{checkpoint.name}.json")


def count(quarantined: pa.Table) -> Counts:
    """Count rows of the quarantine by message type and reason."""
    names = ["message_type_name", "reason"]
    groups = quarantined.select(names).group_by(names).aggregate([([], "count_all")])
    return Counter(
        {(str(row["message_type_name"] or ""), str(row["reason"])): row["count_all"] for row in groups.to_pylist()}
    )


def note(path: Path, batch: int, counts: Counts) -> None:
    """Note what a batch has put into quarantine, in the place of what it had noted where it comes again."""
    known = _read(path)
    before = known["batches"] if known["last"] < batch else _without_last(known)
    told = {"last": batch, "counts": _rows(counts), "batches": _rows(before + counts)}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(told), encoding="utf-8")
    fresh.replace(path)


def read_noted(path: Path) -> Counts:
    """Return what the batches since the run began have put into quarantine."""
    counts: Counts = _read(path)["batches"]
    return counts


def forget(path: Path) -> None:
    """Forget what was noted for an earlier run."""
    path.unlink(missing_ok=True)


def nested(counts: Counts) -> dict[str, dict[str, int]]:
    """Return counts as JSON tells them: reasons in message types."""
    told: dict[str, dict[str, int]] = {}
    for (message_type, reason), number in sorted(counts.items()):
        told.setdefault(message_type, {})[reason] = number
    return told


def in_words(counts: Counts) -> str:
    """Return counts as one phrase, the largest first."""
    return ", ".join(
        f"{message_type}: {reason} {number:,}"
        for (message_type, reason), number in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    )


def limits_of(pipeline: Pipeline) -> dict[str, int]:
    """Return how many messages of a type may go into quarantine in one run, of the rules that say it."""
    return {
        rule.message_type: rule.maximum_quarantined
        for rule in pipeline.messages
        if rule.maximum_quarantined is not None
    }


def check_limits(counts: Counts, limits: Mapping[str, int], table: str, *, allows_none: bool) -> None:
    """Refuse what has gone into quarantine in a run.

    Raises:
        TooManyQuarantined: it is more than a rule's limit, or more than none where none is allowed.
    """
    problems = []
    for message_type, most in limits.items():
        these = Counter({key: number for key, number in counts.items() if key[0] == message_type})
        if these.total() > most:
            problems.append(
                f"{counted(these.total(), 'message')} of the type '{message_type}' went into quarantine in this run, "
                f"and its rule allows {most:,} ({in_words(these)})."
            )
    if allows_none and counts and not problems:
        problems.append(f"{counted(counts.total(), 'message')} went into quarantine in this run ({in_words(counts)}).")
    if problems:
        raise TooManyQuarantined(
            f"{' '.join(problems)} What could be read has landed. Look at the table '{table}', mend the rule, and run "
            "'servicebroker pipeline replay'."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(read_file(path))
    except FileNotFoundError:
        return {"last": -1, "counts": Counter(), "batches": Counter()}
    return {"last": told["last"], "counts": _counts(told["counts"]), "batches": _counts(told["batches"])}


def _without_last(known: Mapping[str, Any]) -> Counts:
    counts: Counts = known["batches"] - known["counts"]
    return counts


def _rows(counts: Counts) -> list[tuple[str, str, int]]:
    return [(*key, number) for key, number in sorted(counts.items())]


def _counts(rows: list[list[Any]]) -> Counts:
    return Counter({(message_type, reason): number for message_type, reason, number in rows})
