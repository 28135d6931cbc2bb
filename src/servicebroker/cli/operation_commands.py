"""Commands whose options are made from the fields of an operation (`servicebroker.operations`), with their help."""

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

    The command gets the operation as its first argument. Its other parameters are ordinary parameters of Typer. Its
    help is its docstring, else that of the operation. An ALTER without options is refused.

    Args:
        operation: its first field is the argument, unless the field is keyword-only; the other fields are options.
        only: the fields that become options. Default: all.
        without: the fields that do not become options.
        options: the option for a field, by the field's name, if it differs: `--service` for `service_name`.
        defaults: the default of an option, by the field's name, if it differs from the operation's.
    """
    option_names, changed_defaults = options or {}, defaults or {}
    declared: tuple[Field[Any], ...] = fields(operation)  # type: ignore[arg-type] # every operation is a dataclass
    offered = [field for field in declared if (only is None or field.name in only) and field.name not in without]
    optional = [field for field in offered if field.default is not MISSING]
    option_defaults = {field.name: changed_defaults.get(field.name, _default(field)) for field in optional}
    hints, descriptions = get_type_hints(operation), arguments_of(operation)
    annotations = {
        field.name: _annotation(
            field,
            hints[field.name],
            descriptions[field.name],
            option_names,
            is_argument=field is declared[0] and not field.kw_only,
            complete=_name_completion(operation),
        )
        for field in offered
    }

    def decorate(command: Callable[Concatenate[OperationT, ...], None]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            values = {field.name: arguments.pop(field.name) for field in offered}
            is_alter = method_name(operation).startswith("alter")
            if is_alter and all(values[name] == default for name, default in option_defaults.items()):
                raise typer.BadParameter(f"give an option to change, such as {_option(optional[0], option_names)}")
            command(operation(**{name: value for name, value in values.items() if value is not None}), **arguments)

        run.__name__, run.__doc__ = command.__name__, command.__doc__ or summary_of(operation)
        _, *other_parameters = inspect.signature(command).parameters.values()
        other_hints = get_type_hints(command, include_extras=True)
        _declare(
            run,
            annotations | {parameter.name: other_hints[parameter.name] for parameter in other_parameters},
            option_defaults | {parameter.name: parameter.default for parameter in other_parameters},
        )
        return run

    return decorate


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
        app: the Typer application `servicebroker KIND`.
        verb: create, alter or drop.
        kind: queue, service, route ...
        operation: the operation to run.
        sentence: a template with `{name}` and `{database}`, printed after the operation.
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
    """Set the signature of the command, from which Typer makes arguments and options."""
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


def _name_completion(operation: type[Operation[Any]]) -> Callable[..., list[str]] | None:
    """Return the completion function for the name that an operation alters or drops; None for CREATE."""
    verb, _, kind = method_name(operation).partition("_")
    return None if verb == "create" else _COMPLETED_KINDS.get(kind)


def _annotation(
    field: Field[Any],
    hint: Any,
    description: str,
    option_names: Mapping[str, str],
    *,
    is_argument: bool,
    complete: Callable[..., list[str]] | None,
) -> Any:
    """Return the annotated type of the parameter for a field, as Typer reads it."""
    text, kind = re.sub(r"\s+", " ", description).strip(), written_type(hint)
    help_ = text[:1].upper() + text[1:] + (" May be repeated." if kind == list[str] else "")
    if is_argument:
        return Annotated[str, typer.Argument(metavar=field.name.upper(), help=help_, autocompletion=complete)]
    option = _option(field, option_names)
    return Annotated[kind, typer.Option(option, help=help_, autocompletion=_COMPLETED_FIELDS.get(field.name))]


def _option(field: Field[Any], option_names: Mapping[str, str]) -> str:
    """Return the option of a field. A flag that is on, or unchanged, by default is `--flag/--no-flag`."""
    name = f"--{field.name.replace('_', '-')}"
    has_negative_form = field.type == "bool | None" or field.default is True
    return option_names.get(field.name, f"{name}/{name.replace('--', '--no-')}" if has_negative_form else name)


def _default(field: Field[Any]) -> object:
    return list(field.default) if isinstance(field.default, tuple) else field.default
