"""The reference of the command line, from the parsers of the programs."""

import argparse
import html
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from adsum.__main__ import PROGRAMS, package_of

_MARKDOWN: Final = re.compile(r"([\\*_\[\]|])")


def programs() -> str:
    """Markdown: a section for each program and one for each command, with a table of arguments for each group."""
    sections: list[str] = []
    for name, about in PROGRAMS.items():
        parser: argparse.ArgumentParser = import_module(f"{package_of(name)}.__main__").build_parser()
        sections += _program(f"adsum {name}", about, parser, level=2)
    return "\n\n".join(sections)


def _program(title: str, about: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {title}"
    yield _plain(about[:1].upper() + about[1:])
    for group in parser._action_groups:  # argparse has no public way to walk a parser
        shown = [action for action in group._group_actions if _is_shown(action)]
        if shown:
            if group.title not in ("options", "positional arguments"):
                yield f"**{str(group.title).capitalize()}**"
            yield _table(shown, parser._get_formatter())
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            abouts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                yield from _program(f"{title} {name}", abouts[name], command, level + 1)


def _is_shown(action: argparse.Action) -> bool:
    hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and action.help != argparse.SUPPRESS


def _table(actions: list[argparse.Action], formatter: argparse.HelpFormatter) -> str:
    rows = [f"| `{_name(action)}` | {_meaning(action, formatter)} |" for action in actions]
    return "\n".join(["| argument | meaning |", "|---|---|", *rows])


def _name(action: argparse.Action) -> str:
    words = action.option_strings or [str(action.metavar or action.dest)]
    value = _value(action) if action.option_strings and action.nargs != 0 else ""
    return ", ".join(words) + value


def _value(action: argparse.Action) -> str:
    named = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    text = " ".join(named) if isinstance(named, tuple) else str(named)
    return f"[={text}]" if action.nargs == "?" else f" {text}"


def _meaning(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    return _plain(formatter._expand_help(action)) if action.help else ""


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, but for `code`."""
    escaped = _MARKDOWN.sub(r"\\\1", html.escape(text, quote=False))
    return escaped if text.count("`") % 2 == 0 else escaped.replace("`", r"\`")
