"""No class name is defined twice in our packages, except for the blocking twins of the public API."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKING_TWINS = {"Instance", "InstanceEventStream", "InstanceHandle", "ServiceDiscovery", "ServiceRegistry"}


def test_no_class_name_stands_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in ("adsum", "discovery", "registry", "epp", "dispatcher"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in re.findall(r"^ *class (\w+)[(:\[]", path.read_text(), re.MULTILINE):
                places[name].append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert set(twice) == BLOCKING_TWINS, twice
