"""Snapshots never change, share untouched parts, and only other parts are compared."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery.copy_on_write import CopyOnWriteDict, FrozenDict, differing_parts
from discovery.events import changed_ids
from tests.discovery.test_events import instances

keys = st.integers(0, 300).map("worker-{}".format)
writes = st.lists(st.tuples(keys, st.none() | instances), max_size=30)


def written(
    steps: list[tuple[str, object | None]], into: CopyOnWriteDict[object], model: dict[str, object]
) -> None:
    for key, value in steps:
        if value is None:
            into.pop(key, None)
            model.pop(key, None)
        else:
            into[key] = value
            model[key] = value


@settings(deadline=None)
@given(writes, writes)
def test_it_is_a_dict_and_snapshots_never_change(
    first: list[tuple[str, object | None]], second: list[tuple[str, object | None]]
) -> None:
    filled: CopyOnWriteDict[object] = CopyOnWriteDict()
    model: dict[str, object] = {}
    written(first, filled, model)
    frozen, then = filled.frozen(), dict(model)
    written(second, filled, model)
    assert dict(filled.items()) == model
    for found, expected in ((frozen, then), (filled.frozen(), model)):
        assert found == expected
        assert len(found) == len(expected)
        assert bool(found) == bool(expected)
        assert set(found) == set(expected)
        assert dict(found.items()) == expected
        assert len(list(found.values())) == len(expected)
        assert all(key in found and found[key] is found.get(key) is value for key, value in expected.items())


@settings(deadline=None)
@given(writes, writes)
def test_only_differing_parts_are_compared(
    first: list[tuple[str, object | None]], second: list[tuple[str, object | None]]
) -> None:
    filled: CopyOnWriteDict[object] = CopyOnWriteDict()
    model: dict[str, object] = {}
    written(first, filled, model)
    old, old_model = filled.frozen(), dict(model)
    written(second, filled, model)
    new = filled.frozen()
    differing = {key for key in old_model.keys() | model.keys() if old_model.get(key) != model.get(key)}
    for found in (changed_ids(old, new), changed_ids(old_model, model), changed_ids(old_model, new)):
        assert set(found) == differing
        assert len(found) == len(differing)


def test_one_write_unshares_one_part() -> None:
    filled: CopyOnWriteDict[int] = CopyOnWriteDict()
    for number in range(10_000):
        filled[f"worker-{number}"] = number
    old = filled.frozen()
    assert filled.frozen() is old
    assert not list(differing_parts(old, old))
    filled["worker-7"] = -7
    [(before, after)] = differing_parts(old, filled.frozen())
    assert before.keys() == after.keys()
    assert len(before) < 1_000


def test_a_snapshot_is_a_read_only_mapping() -> None:
    empty: Mapping[str, int] = FrozenDict()
    assert not empty
    assert empty.get("a") is None
    assert "a" not in empty
    with pytest.raises(KeyError):
        empty["a"]
    with pytest.raises(TypeError):
        empty["a"] = 1
    assert repr(empty) == "FrozenDict({})"


def test_updated_shares_the_untouched_parts() -> None:
    written: CopyOnWriteDict[int] = CopyOnWriteDict()
    for number in range(1000):
        written[str(number)] = number
    frozen = written.frozen()
    updated = frozen.updated({"7": -7})
    assert (frozen["7"], updated["7"], len(updated)) == (7, -7, 1000)
    pairs = list(differing_parts(frozen, updated))
    assert len(pairs) == 1
    assert frozen.updated({}).parts == frozen.parts
