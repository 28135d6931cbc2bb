"""Parse RESOURCE=AMOUNT, the amounts of a budget on the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import typer


def read_amounts(changes: Iterable[str], resources: Collection[str]) -> dict[str, int]:
    """Return the amounts by resource.

    Raises:
        typer.BadParameter: a text has an unknown resource, or an amount that is not a whole number.
    """
    return dict(_read_amount(change, resources) for change in changes)


def _read_amount(change: str, resources: Collection[str]) -> tuple[str, int]:
    resource, _, amount = change.partition("=")
    if resource not in resources or not amount.isdecimal():
        example = f"{next(iter(resources))}=5000"
        raise typer.BadParameter(f"'{change}' is not a RESOURCE=AMOUNT, such as {example}", param_hint="--set")
    return resource, int(amount[:20])  # 20 digits are beyond every limit
