"""The Go picker's own configurations load, or the error names exactly what is not built; docs/migration.md says which.

The files are written anew from those of llm-d-router, deploy/config, August 2026: same names, plugins, parameters, order
of profiles and weights.
"""

import random
import re
from pathlib import Path

import pytest

from adsum.config.problems import ConfigError
from epp.config.picker_config import load_config

FILES = Path(__file__).parent / "go_files"
PAGE = (Path(__file__).parents[3] / "docs" / "migration.md").read_text()
TABLE = dict(re.findall(r"^\| `([a-z-]+\.yaml)` \| (.*?) \|$", PAGE, re.MULTILINE))


def missing(path: Path) -> set[str]:
    """What the error says is not built; asserts that it says nothing else."""
    try:
        load_config(path.read_text(), rng=random.Random(1))
    except ConfigError as error:
        found = set()
        for problem in error.problems:
            named = re.match(
                r"'([a-z-]+)' is a plugin of the Go picker that adsum does not have; ", problem.detail
            )
            assert named, str(problem)
            assert problem.line is not None
            found.add(named[1])
        return found
    return set()


def test_the_page_lists_them_all() -> None:
    assert TABLE.keys() == {path.name for path in FILES.iterdir()}
    assert len(TABLE) == 19


@pytest.mark.parametrize("path", sorted(FILES.iterdir()), ids=lambda path: path.name)
def test_a_file_loads_or_the_error_names_what_is_not_built(path: Path) -> None:
    told = TABLE[path.name]
    assert missing(path) == set(re.findall("`(.*?)`", told))
    assert (told == "loads") is not bool(missing(path))
