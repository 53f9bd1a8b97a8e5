"""`python -m benchmarks routing` and its flags, as users type them."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.routing import results
from benchmarks.routing.run import Plan, run
from tests.in_process import run_here

_ARMS = ("least cost", "oracle")


def small(out: Path, *, seeds: int = 1) -> Plan:
    return Plan(("growing sessions",), _ARMS, seeds=seeds, seconds=2.0, jobs=1, out=out)


def test_runs_that_the_file_has_are_not_repeated_and_a_table_is_made_of_them(tmp_path: Path) -> None:
    out = tmp_path / "routing.jsonl"
    first = run(small(out))
    marked = out.read_text().replace('"failed": 0', '"failed": 7', 1)
    out.write_text(marked)
    both = run(small(out, seeds=2))
    assert [one.figures.failed for one in both] == [7, 0, 0, 0]
    assert len(first) == 2
    assert len(out.read_text().splitlines()) == 4
    table = list(results.tables(first))
    assert "growing sessions (used for tuning; 1 seeds)" in table
    oracle = next(line for line in table if line.startswith("| oracle"))
    assert oracle.split("|")[3].strip() == "1.00", "the ratio to the oracle of the same seeds"


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "other.jsonl"
    out.write_text(json.dumps({"workload": "growing sessions"}) + "\n")
    with pytest.raises(SystemExit, match=r"line 1 is not a result .* give another file"):
        run(small(out))
    assert len(out.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "3", "--workload", "60 at once, same"), "has no rate"),
        (("--workload", "sunshine"), "invalid choice: 'sunshine'"),
        (("--arm", "sunshine"), "invalid choice: 'sunshine'"),
        (("--seeds", "0"), "must be at least 1"),
        (("--rate", "0", "--workload", "long tail"), "must be more than 0"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...], said: str) -> None:
    found = run_here(main, "routing", *arguments)
    assert found.returncode != 0
    assert said in found.stderr
