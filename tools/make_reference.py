"""Writes the reference of the API and of the commands into pages of the documentation, from docstrings and options.

    python tools/make_reference.py           writes what has changed
    python tools/make_reference.py --check   fails when something is out of date, or nobody tells of it

A page has prose and examples of its own, and marks where a description stands:

    <!-- api: Database.send -->
    ...
    <!-- end -->

    <!-- command: queue create -->
    ...
    <!-- end -->

    <!-- errors: all -->
    ...
    <!-- end -->

    <!-- commands: all -->
    ...
    <!-- end -->
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import griffe

from servicebroker import operations
from servicebroker.cli.main import COMMANDS, GROUPS, load
from servicebroker.model.errors import RULES
from servicebroker.model.remedies import REMEDIES
from servicebroker.operations.operation import help_of, result_of

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("docs/reference/api/*.md")),
    *(ROOT / f"docs/reference/{one}.md" for one in ("cli", "commands", "errors")),
]

EXAMPLES = ROOT / "src/servicebroker/cli/examples.py"

_MARK = re.compile(r"<!-- (api|command|commands|errors): (.+?) -->\n.*?<!-- end -->", re.DOTALL)
_HIDDEN = {"--help", "--install-completion", "--show-completion"}


# ---------------------------------------------------------------- the API


def package() -> griffe.Module:
    """The package as its text says; nothing of it runs."""
    griffe.ModuleFinder.extensions_set.discard(".pyi")  # a stub has no docstrings
    loaded = griffe.load("servicebroker", search_paths=[ROOT / "src"], docstring_parser="google")
    assert isinstance(loaded, griffe.Module)
    return loaded


def found(module: griffe.Module, path: str) -> Any:
    """Return the member that a mark of a page names; an alias is followed to its target."""
    member: Any = module
    for part in path.split("."):
        member = member.all_members[part]
        if member.is_alias:
            member = member.final_target
    return member


def made_of_operation(module: griffe.Module, thing: Any) -> griffe.Function:
    """The method as its caller sees it that is made of an operation: `send = operation_method(Send)`."""
    text = found(module, thing.value.arguments[0].canonical_path.removeprefix("servicebroker."))
    operation = getattr(operations, text.name)
    parameters = [
        griffe.Parameter(
            one.name,
            annotation=one.annotation,
            kind=griffe.ParameterKind(one.kind.description),
            default=None if one.default is one.empty else repr(one.default),
        )
        for one in inspect.signature(operation).parameters.values()
    ]
    returns = re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", inspect.formatannotation(result_of(operation)))
    method = griffe.Function(thing.name, parameters=griffe.Parameters(*parameters), returns=returns, parent=text.parent)
    method.docstring = griffe.Docstring(help_of(operation), parent=method, parser="google")
    return method


def _is_made(thing: Any) -> bool:
    """Return whether an attribute is a method made by `operation_method`."""
    return thing.is_attribute and str(thing.value).startswith("operation_method(")


def public_names(module: griffe.Module) -> list[str]:
    """Return the names for the reference: exported names, and public methods of their classes.

    The forms for asyncio have the same methods.
    """
    names = []
    for name in module.exports or ():
        thing = found(module, str(name)) if str(name) in module.all_members else None
        if thing is None or str(name).startswith("_") or (str(name).startswith("Async") and thing.is_class):
            continue
        names.append(str(name))
        if thing.is_class and str(name) in _WITH_METHODS:
            names += [f"{name}.{method}" for method in methods(thing)]
    verbs = set(methods(found(module, "Transaction")))  # a database has them too, and a joined transaction
    others = ("Database.", "JoinedTransaction.")
    return [name for name in names if not (name.startswith(others) and name.rpartition(".")[2] in verbs)]


_WITH_METHODS = {"Instance", "Database", "Transaction", "JoinedTransaction", "ConversationPool", "Worker", "Events"}
_INTERNAL_METHODS = {  # methods that other parts of the package call, and no application
    "catalog_of", "check_caller", "count_polled", "count_received", "open", "renew", "share_events",  # Instance
    "sleep", "works_as_user",
    "check", "check_handles", "handler_of", "handler_of_schedule", "is_async",  # Worker
    "record", "tell", "watches_conversations",  # Events
}  # fmt: skip


def methods(thing: Any) -> list[str]:
    """The public methods of a class, inherited ones too, in alphabetical order."""
    return sorted(
        name
        for name, member in thing.all_members.items()
        if not name.startswith("_") and name not in _INTERNAL_METHODS and _is_method(member)
    )


def _is_method(member: Any) -> bool:
    target = member.final_target if member.is_alias else member
    return bool(target.is_function and target.docstring) or _is_made(target)


def described(module: griffe.Module, path: str) -> str:
    """The signature and the docstring of a name, in Markdown."""
    thing = found(module, path)
    if _is_made(thing):
        thing = made_of_operation(module, thing)
    parts = []
    if thing.is_function or thing.is_class:
        parts.append(f"```py\n{signature(thing, path)}\n```")
    if thing.docstring is None:
        raise ValueError(f"{path} has no docstring.")
    for section in thing.docstring.parsed:
        parts.append(_section(section))
    return "\n\n".join(part for part in parts if part)


def signature(thing: Any, path: str) -> str:
    """`send(handle: UUID, ...) -> int`, each parameter on a line where one line is too short."""
    name = path.rpartition(".")[2]
    parameters = list(thing.parameters)
    written = [text for text in _parameters(parameters) if text != "self"]
    returns = f" -> {thing.returns}" if thing.is_function and thing.returns is not None else ""
    line = f"{name}({', '.join(written)}){returns}"
    if len(line) <= 88:
        return line
    inner = "".join(f"    {text},\n" for text in written)
    return f"{name}(\n{inner}){returns}"


def _parameters(parameters: list[Any]) -> list[str]:
    texts, named = [], False
    for one in parameters:
        kind = one.kind
        if kind is griffe.ParameterKind.keyword_only and not named:
            named = True
            texts.append("*")
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        named = named or stars == "*"
        annotation = f": {one.annotation}" if one.annotation is not None else ""
        default = "" if one.default is None or stars else f" = {one.default}" if annotation else f"={one.default}"
        texts.append(f"{stars}{one.name}{annotation}{default}")
    return texts


def _section(section: Any) -> str:
    match section.kind:
        case griffe.DocstringSectionKind.text:
            return _text(section.value)
        case griffe.DocstringSectionKind.parameters | griffe.DocstringSectionKind.attributes:
            return _rows(
                "Argument" if "param" in section.kind.value else "Attribute",
                [(f"`{one.name}`", one.description) for one in section.value],
            )
        case griffe.DocstringSectionKind.raises:
            return _rows("Raises", [(f"`{one.annotation}`", _linked(one.description)) for one in section.value])
        case griffe.DocstringSectionKind.returns:
            return "**Returns:** " + " ".join(" ".join(one.description.split()) for one in section.value)
        case _:
            raise ValueError(f"A docstring has a section that nobody writes: {section.kind.value}.")


def _text(text: str) -> str:
    """Paragraphs as they are; what is indented by four is Python."""
    code = re.compile(r"((?:^    .*\n?(?:\n(?=    ))?)+)", re.MULTILINE)
    text = code.sub(lambda found: f"```py\n{_outdented(found[1])}\n```\n", text)
    return re.sub(r"\(docs/([\w/-]+\.md)(#[\w-]+)?\)", r"([\1](../../\1\2))", text.strip())


def _outdented(code: str) -> str:
    return re.sub(r"^    ", "", code, flags=re.M).strip("\n")


def _rows(head: str, rows: list[tuple[str, str]]) -> str:
    told = "\n".join(f"| {_cell(name)} | {_cell(text)} |" for name, text in rows)
    return f"| {head} | |\n|---|---|\n{told}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ---------------------------------------------------------------- the errors


def errors() -> str:
    """Every number with its text and what mends it, each with an anchor."""
    rows = "".join(
        f'| <a id="{number}"></a>{number} | {_said(RULES[number].text)} | {_cell(REMEDIES.get(number, ""))} |\n'
        for number in sorted(RULES)
    )
    return f"| number | it says | what to do |\n|---|---|---|\n{rows}".rstrip()


def _said(text: str) -> str:
    """The text with `…` for what is filled in, and nothing in it that Markdown takes for its own."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", re.sub(r"['\"]?\{\d\}['\"]?", "…", _cell(text)))


def _linked(text: str) -> str:
    """With a link at each number of an error."""
    return re.sub(
        r"(?<![\w,.])\d{3,5}(?![\w,.]\d|\w)",
        lambda found: f"[{found[0]}](../errors.md#{found[0]})" if int(found[0]) in RULES else found[0],
        text,
    )


# ---------------------------------------------------------------- the commands


def commands() -> dict[str, Any]:
    """Every command by its words: `queue create`."""
    listed: dict[str, Any] = {}
    for name in COMMANDS:
        command = load(name)
        if words := getattr(command, "commands", None):
            listed |= {f"{name} {word}": one for word, one in words.items() if not one.hidden}
        else:
            listed[name] = command
    return listed


def overview(known: dict[str, Any]) -> str:
    """Return a table of all commands by group, each with a link to its description."""
    rows = "".join(
        f"| **{group}** | |\n"
        + "".join(f"| {_links(name, known)} | {_cell(COMMANDS[name].help)} |\n" for name in names)
        for group, names in GROUPS.items()
    )
    return f"| command | does |\n|---|---|\n{rows}".rstrip()


def _links(name: str, known: dict[str, Any]) -> str:
    """Return a link to a command, or its name and a link to each word that follows it."""
    if name in known:
        return f"[`{name}`](commands.md#{name})"
    words = [one.partition(" ")[2] for one in known if one.startswith(f"{name} ")]
    return f"`{name}` " + ", ".join(f"[{word}](commands.md#{name}-{word})" for word in words)


def told(words: str, command: Any) -> str:
    """Its usage, what it does, and its options, in Markdown."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not _HIDDEN & set(one.opts)]
    usage = " ".join(["servicebroker", words, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])])
    rows = [(f"`{_argument(one)}`", getattr(one, "help", None) or "") for one in arguments]
    rows += [(f"`{_option(one)}`", _help(one)) for one in options]
    text = " ".join((command.help or "").split())
    return f"`{usage}`\n\n{text}" + (f"\n\n{_rows('Argument or option', rows)}" if rows else "")


def _argument(one: Any) -> str:
    name = one.metavar or one.name.upper()
    return name if one.required or name.startswith("[") else f"[{name}]"


def _option(one: Any) -> str:
    names = ", ".join(one.opts) + ("" if not one.secondary_opts else f" / {', '.join(one.secondary_opts)}")
    return names if one.is_flag else f"{names} {one.metavar or _value(one.type_descriptor.annotation)}"


def _value(kind: Any) -> str:
    """Return the placeholder for a value of that type in a usage line: `A|B` for one of few."""
    kinds = [one for one in get_args(kind) if one is not type(None)] or [kind]
    if issubclass(kinds[0], StrEnum):
        return "|".join(kinds[0])
    return {int: "N", float: "N"}.get(kinds[0], "TEXT")


def _help(one: Any) -> str:
    text = " ".join((one.help or "").split())
    if one.required:
        text += " Required."
    elif not one.is_flag and one.default not in (None, [], ()):
        text += f" Default: `{getattr(one.default, 'value', one.default)}`."
    if one.envvar:
        text += f" Or the variable `{one.envvar}`."
    return text.strip()


# ---------------------------------------------------------------- the pages


def made(text: str, module: griffe.Module, known: dict[str, Any]) -> str:
    """A page with its descriptions as they are now."""

    def fill(mark: re.Match[str]) -> str:
        match mark[1]:
            case "api":
                what = described(module, mark[2])
            case "command":
                what = told(mark[2], known[mark[2]])
            case "commands":
                what = overview(known)
            case _:
                what = errors()
        return f"<!-- {mark[1]}: {mark[2]} -->\n\n{what}\n\n<!-- end -->"

    return _MARK.sub(fill, text)


def examples(page: str) -> str:
    """The module of the commands' examples: of each the first line that the page runs under it."""
    rows = "".join(f"    {_text_of(words)}: {_text_of(line)},\n" for words, line in _shown(page))
    return (
        "# Made from docs/reference/commands.md by tools/make_reference.py: change that page.\n"
        '"""An example of each command, for its help."""\n\n'
        f"EXAMPLES = {{\n{rows}}}\n"
    )


def _shown(page: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"(?=<!-- command: )", page)[1:]:
        words, _, rest = part.partition(" -->")
        words = words.removeprefix("<!-- command: ")
        run = re.search(
            rf"^(?:\w*\$ )?(servicebroker {re.escape(words)}\b[^\n]*)", rest.partition("<!-- end -->")[2], re.MULTILINE
        )
        if run is None:
            raise ValueError(f"{words} has no example.")
        yield words, run[1].removeprefix("servicebroker ").partition("  #")[0].strip()


def _text_of(line: str) -> str:
    return f"'{line}'" if '"' in line and "'" not in line else json.dumps(line)


def left_out(module: griffe.Module, known: dict[str, Any]) -> list[str]:
    """Return the public names that no page mentions."""
    marked = {(kind, name) for page in PAGES for kind, name in _MARK.findall(page.read_text())}
    names = [name for name in public_names(module) if ("api", name) not in marked]
    return names + [f"servicebroker {words}" for words in known if ("command", words) not in marked]


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check only look; 1 when something was to be done."""
    only_look = "--check" in arguments
    module, known = package(), commands()
    pages = {page: made(page.read_text(), module, known) for page in PAGES}
    pages[EXAMPLES] = examples((ROOT / "docs/reference/commands.md").read_text())
    stale = {page: text for page, text in pages.items() if page.read_text() != text}
    for page, text in stale.items():
        print("out of date:" if only_look else "written:", page.relative_to(ROOT))
        if not only_look:
            page.write_text(text)
    missing = left_out(module, known)
    for name in missing:
        print("no page tells of", name)
    return 1 if missing or (only_look and stale) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
