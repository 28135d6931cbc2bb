"""Commands that run one definition: their options are the fields of the operation, with the same help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from servicebroker.cli.existing import open_database
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.operations.operation import Definition, arguments_of

_OF_EVERY_COMMAND = {"database": DatabaseOption, "instance": InstanceOption, "as_json": JsonOption}


def add_command(
    app: typer.Typer,
    verb: str,
    kind: str,
    operation: type[Definition[None]],
    sentence: str,
    *,
    options: Mapping[str, str] | None = None,
    without: Iterable[str] = (),
) -> None:
    """Add the command `servicebroker KIND VERB`, which runs the operation in a database.

    Args:
        app: of the kind.
        verb: create, alter or drop.
        kind: queue, service, route ...
        operation: what is run; `name` is the argument, its other fields are options.
        sentence: what is said then, with `{name}` and `{database}`.
        options: how the options of some fields are written: `--service` for `service_name`.
        without: fields that have no option.
    """
    spelled, hints, told = options or {}, get_type_hints(operation), arguments_of(operation)
    declared: tuple[Field[Any], ...] = fields(operation)  # type: ignore[arg-type] # each is a dataclass
    offered = [field for field in declared if field.name not in without]
    required = [field for field in offered if field.default is MISSING]

    def command(**given: Any) -> None:
        instance, database, as_json = (given.pop(name) for name in ("instance", "database", "as_json"))
        is_empty = all(given[field.name] == _default(field) for field in offered if field not in required)
        if verb == "alter" and is_empty:
            raise typer.BadParameter(f"say what changes: {_spelled(offered[1], spelled)} ...")
        name = given["name"]
        with open_database(instance, database) as opened:
            opened.run(operation(**{key: value for key, value in given.items() if value is not None}))
        if as_json:
            say_json({kind: name, "database": database, "done": f"{verb}{'ped' if verb == 'drop' else 'ed'}"})
        else:
            say(sentence.format(name=name, database=database))

    parameters = {field.name: _annotation(field, hints[field.name], told, spelled) for field in offered}
    defaults = {field.name: _default(field) for field in offered if field not in required}
    _declare(command, {**parameters, **_OF_EVERY_COMMAND}, {**defaults, "instance": DEFAULT_INSTANCE, "as_json": False})
    app.command(verb, help=(inspect.getdoc(operation) or "").partition("\n\nArgs:")[0])(command)


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


def _annotation(field: Field[Any], hint: Any, told: Mapping[str, str], spelled: Mapping[str, str]) -> Any:
    """What Typer has to know of a field."""
    text = re.sub(r"\s+", " ", told[field.name]).strip()
    help_ = text[:1].upper() + text[1:]
    if field.name == "name":
        return Annotated[str, typer.Argument(metavar="NAME", help=help_)]
    return Annotated[_type(field, hint), typer.Option(_spelled(field, spelled), help=help_)]


def _spelled(field: Field[Any], spelled: Mapping[str, str]) -> str:
    """How an option is written; what is False by default is switched on, anything else on or off."""
    plain = f"--{field.name.replace('_', '-')}"
    is_switch = field.type == "bool | None" or field.default is True
    return spelled.get(field.name, f"{plain}/{plain.replace('--', '--no-')}" if is_switch else plain)


def _type(field: Field[Any], hint: Any) -> Any:
    """The type of an option: a text stands for what can be one, a list for several texts."""
    if get_origin(hint) is not None and Iterable in (hint, get_origin(hint)):
        return list[str]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    kind = str if str in kinds else kinds[0]
    return kind | None if field.default is None else kind


def _default(field: Field[Any]) -> object:
    return list(field.default) if isinstance(field.default, tuple) else field.default
