"""`python -m release.derived`: write what follows from the picker's flags into its page and its chart. Tests compare them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from epp.config.declared_flags import duration, flags_of
from epp.config.flags import build_parser
from epp.config.log_flags import LogSettings
from epp.config.settings import Settings

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "picker.md"
SCHEMA: Final = ROOT / "charts" / "epp" / "values.schema.json"
_OWN: Final = "| our flag | meaning |\n|---|---|\n"
_UNITS: Final = "(ns|us|µs|ms|s|m|h)"


def page() -> str:
    """The page, with a row for each flag that no row above its table of our own flags explains."""
    above, heading, below = PAGE.read_text().partition(_OWN)
    rows = " ".join(re.findall(r"^\| (`-.*?) \|", above, re.MULTILINE))
    explained = set(re.findall(r"`(--?[a-z-]+)", rows))
    flags = [flag for settings in (LogSettings, Settings) for _, flag in flags_of(settings)]
    own = [flag for flag in flags if not {f"--{flag.name}", flag.short} & explained]
    _, end, rest = below.partition("\n\n")
    return above + heading + "\n".join(f"| `--{flag.name}` | {flag.help} |" for flag in own) + end + rest


def schema() -> str:
    """The schema, with definitions of the flags that the picker knows."""
    text = SCHEMA.read_text()
    for name, definition in _definitions():
        key = f'    "{name}": '
        start = text.index(key, text.index('  "definitions": {')) + len(key)
        before, end = json.JSONDecoder().raw_decode(text, start)
        if before != definition:
            text = (
                text[:start]
                + json.dumps(definition, ensure_ascii=False, indent=2).replace("\n", "\n    ")
                + text[end:]
            )
    return text


def _definitions() -> Iterator[tuple[str, Any]]:
    options = {option: action for action in build_parser()._actions for option in action.option_strings}
    known = {option[2:]: action for option, action in options.items() if option.startswith("--")}
    names = sorted(known.keys() - {"help", "version"})  # these end the program
    durations = [name for name in names if known[name].type is duration]
    others = "|".join(name for name in names if name not in durations)
    yield "flag", {"enum": names}
    properties = {name: {"$ref": "#/definitions/duration"} for name in durations}
    yield "durations", {"type": "object", "properties": properties}
    patterns = (
        "^[^-]",
        f"^(-v|--({others}))(=|$)",
        f"^--({'|'.join(durations)})(=([0-9.]+{_UNITS})+)?$",
    )
    yield "argument", {"type": "string", "anyOf": [{"pattern": pattern} for pattern in patterns]}


DERIVED: Final = {PAGE: page, SCHEMA: schema}

if __name__ == "__main__":
    for path, derive in DERIVED.items():
        path.write_text(derive())
