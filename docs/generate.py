"""Write the reference pages from the code itself: `make docs`. A test holds the committed pages to this output."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from es_ttc.cli.app import cli
from es_ttc.rescorers import registry
from es_ttc.settings import GatewaySettings, Settings

FOLDER = Path(__file__).parent / "reference"
NOTICE = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->\n"


def commands_page() -> str:
    """Every command with its help text and options."""
    parts = ["# Commands\n", NOTICE]
    for path, command in _commands(cli, "es-ttc"):
        context = click.Context(command, info_name=path)
        parts += [f"## `{path}`\n", inspect.cleandoc(command.help or "") + "\n"]
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"```\n{path} {usage}\n```\n")
        options = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
        if options:
            parts.append("| option | meaning |\n| --- | --- |")
            parts.append("".join(f"| `{_cell(name)}` | {_cell(text)} |\n" for name, text in options))
    return "\n".join(parts)


def methods_page() -> str:
    """Every rescorer with its parameters and needs."""
    parts = ["# Methods of the `rescore` hook\n", NOTICE]
    for name in registry.names():
        rescorer = registry.load(name)
        doc = inspect.getdoc(type(rescorer)) or ""
        needs = ", ".join(f"`{need}`" for need in sorted(rescorer.needs(rescorer.Params())))
        parts += [f"## `{name}`\n", doc + "\n", f"Needs: {needs}.\n", _fields_table(rescorer.Params)]
    return "\n".join(parts)


def settings_page() -> str:
    """Every setting with its variable, type and default."""
    parts = [
        "# Settings\n",
        NOTICE,
        "A command's flag wins over the `ES_TTC_*` variable, the variable over `es-ttc.toml` in the working folder "
        "(same names), the file over the default. The variable of `request_timeout` is `ES_TTC_REQUEST_TIMEOUT`.\n",
        "## All commands\n",
        _settings_table(Settings, skip=set()),
        "## The gateway\n",
        _settings_table(GatewaySettings, skip=set(Settings.model_fields)),
    ]
    return "\n".join(parts)


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _commands(command.commands[name], f"{path} {name}")
    else:
        yield path, command


def _fields_table(model: type[BaseModel]) -> str:
    if not model.model_fields:
        return "No parameters.\n"
    rows = "".join(
        f"| `{name}` | {_type(field)} | {_default(field)} | {_cell(field.description or '')} |\n"
        for name, field in model.model_fields.items()
    )
    return f"| parameter | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}"


def _settings_table(model: type[BaseSettings], *, skip: set[str]) -> str:
    rows = "".join(
        f"| `{name}` | {_type(field)} | {_default(field)} | {_cell(field.description or '')} |\n"
        for name, field in model.model_fields.items()
        if name not in skip
    )
    return f"| setting | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}"


def _type(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    name = annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else annotation
    return f"`{_cell(str(name)).replace('typing.', '').replace('pydantic.types.', '').replace('pathlib._local.', '')}`"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "the user's cache folder"
    return f"`{_cell(str(field.default))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "methods.md": methods_page,
    "settings.md": settings_page,
}


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
