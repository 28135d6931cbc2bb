"""Commands whose options are the fields of an operation, with the same help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Concatenate, TypeVar, get_type_hints

import typer

from servicebroker.cli.completion import complete_database, complete_queue, complete_service
from servicebroker.cli.existing_instance import open_database
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.operations.operation import (
    Definition,
    Operation,
    arguments_of,
    method_name,
    summary_of,
    written_type,
)

_COMPLETED_KINDS = {"queue": complete_queue, "service": complete_service, "database": complete_database}
_COMPLETED_FIELDS = {"queue": complete_queue, "queue_name": complete_queue}

OperationT = TypeVar("OperationT", bound=Operation[Any])


def takes(
    operation: type[OperationT],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    options: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> Callable[[Callable[Concatenate[OperationT, ...], None]], Callable[..., None]]:
    """Return a decorator that gives a command an option for each field of an operation.

    The command gets the operation as its first parameter. Its other parameters are Typer's, as usual. Its help is its
    docstring, else what the operation says. An ALTER that would change nothing is refused.

    Args:
        operation: its first field is the argument, unless the field is keyword-only; the other fields are options.
        only: the fields that have an option; all, if it is not given.
        without: fields that have none.
        options: how the options of some fields are written: `--service` for `service_name`.
        defaults: of some fields, where they differ from the operation's.
    """
    spelled, changed = options or {}, defaults or {}
    declared: tuple[Field[Any], ...] = fields(operation)  # type: ignore[arg-type] # each is a dataclass
    offered = [field for field in declared if (only is None or field.name in only) and field.name not in without]
    optional = [field for field in offered if field.default is not MISSING]
    of_fields = {field.name: changed.get(field.name, _default(field)) for field in optional}
    hints, told = get_type_hints(operation), arguments_of(operation)
    annotations = {
        field.name: _annotation(
            field,
            hints[field.name],
            told[field.name],
            spelled,
            is_argument=field is declared[0] and not field.kw_only,
            completes=_completes(operation),
        )
        for field in offered
    }

    def decorated(command: Callable[Concatenate[OperationT, ...], None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            values = {field.name: given.pop(field.name) for field in offered}
            is_alter = method_name(operation).startswith("alter")
            if is_alter and all(values[name] == default for name, default in of_fields.items()):
                raise typer.BadParameter(f"say what changes: {_spelled(optional[0], spelled)} ...")
            command(operation(**{name: value for name, value in values.items() if value is not None}), **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__ or summary_of(operation)
        _, *own = inspect.signature(command).parameters.values()
        hints_of_own = get_type_hints(command, include_extras=True)
        _declare(
            run,
            annotations | {parameter.name: hints_of_own[parameter.name] for parameter in own},
            of_fields | {parameter.name: parameter.default for parameter in own},
        )
        return run

    return decorated


def add_command(
    app: typer.Typer,
    verb: str,
    kind: str,
    operation: type[Definition[None]],
    sentence: str,
    *,
    options: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> None:
    """Add the command `servicebroker KIND VERB`, which runs the operation in a database.

    Args:
        app: of the kind.
        verb: create, alter or drop.
        kind: queue, service, route ...
        operation: what is run.
        sentence: what is said then, with `{name}` and `{database}`.
        options: as for `takes`.
        without: as for `takes`.
    """

    @app.command(verb)
    @takes(operation, options=options, without=without)
    def command(
        value: Any, database: DatabaseOption, instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False
    ) -> None:
        with open_database(instance, database) as opened:
            opened.run(value)
        if as_json:
            say_json({kind: value.name, "database": database, "done": f"{verb}{'ped' if verb == 'drop' else 'ed'}"})
        else:
            say(sentence.format(name=value.name, database=database))


def _declare(command: Callable[..., None], annotations: dict[str, Any], defaults: Mapping[str, object]) -> None:
    """Give the command these parameters, as Typer reads them."""
    command.__annotations__ = annotations
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=annotation,
                default=defaults.get(name, inspect.Parameter.empty),
            )
            for name, annotation in annotations.items()
        ]
    )


def _completes(operation: type[Operation[Any]]) -> Callable[..., list[str]] | None:
    """Return the completion of the name that an operation alters or drops; a new name has none."""
    verb, _, kind = method_name(operation).partition("_")
    return None if verb == "create" else _COMPLETED_KINDS.get(kind)


def _annotation(
    field: Field[Any],
    hint: Any,
    told: str,
    spelled: Mapping[str, str],
    *,
    is_argument: bool,
    completes: Callable[..., list[str]] | None,
) -> Any:
    """Return the type of a parameter with what Typer has to know of the field."""
    text, kind = re.sub(r"\s+", " ", told).strip(), written_type(hint)
    help_ = text[:1].upper() + text[1:] + (" May be repeated." if kind == list[str] else "")
    if is_argument:
        return Annotated[str, typer.Argument(metavar=field.name.upper(), help=help_, autocompletion=completes)]
    complete = _COMPLETED_FIELDS.get(field.name)
    return Annotated[kind, typer.Option(_spelled(field, spelled), help=help_, autocompletion=complete)]


def _spelled(field: Field[Any], spelled: Mapping[str, str]) -> str:
    """Return the spelling of an option; a switch that is off by default has no negative form."""
    plain = f"--{field.name.replace('_', '-')}"
    is_switch = field.type == "bool | None" or field.default is True
    return spelled.get(field.name, f"{plain}/{plain.replace('--', '--no-')}" if is_switch else plain)


def _default(field: Field[Any]) -> object:
    return list(field.default) if isinstance(field.default, tuple) else field.default
