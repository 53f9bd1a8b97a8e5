"""Generates the shell completion script from the parsers of all programs. Completing with it starts no process."""

import argparse
from collections.abc import Iterator, Mapping
from importlib import import_module

import shtab

from adsum.command_line import Parser, with_commands


def script(parser: argparse.ArgumentParser, programs: Mapping[str, str], shell: str) -> str:
    """The script for bash, zsh or fish. `parser`: of `adsum` itself; `programs`: descriptions by name."""
    everything = with_commands(parser, {name: _parser_of(name, about) for name, about in programs.items()})
    for action in _actions(everything):
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # how shtab is told what a value is
    return shtab.complete(everything, shell=shell)


def _parser_of(program: str, about: str) -> argparse.ArgumentParser:
    """Of a program that is not installed, only the name is completed."""
    try:
        parser: argparse.ArgumentParser = import_module(f"{program}.__main__").build_parser()
    except ModuleNotFoundError:
        parser = Parser()
    parser.description = about
    return parser


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # argparse has no public way to walk a parser
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
