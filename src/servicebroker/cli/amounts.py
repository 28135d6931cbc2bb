"""Amounts of a budget on the command line: RESOURCE=AMOUNT."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import typer


def read_amounts(changes: Iterable[str], resources: Collection[str]) -> dict[str, int]:
    """Return the amounts by resource.

    Raises:
        typer.BadParameter: a text names no resource, or no whole number.
    """
    return dict(_amount(change, resources) for change in changes)


def _amount(change: str, resources: Collection[str]) -> tuple[str, int]:
    resource, _, amount = change.partition("=")
    if resource not in resources or not amount.isdecimal():
        example = f"{next(iter(resources))}=5000"
        raise typer.BadParameter(f"'{change}' is no RESOURCE=AMOUNT such as {example}", param_hint="--set")
    return resource, int(amount[:20])
