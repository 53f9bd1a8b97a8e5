"""Sets that are handed over whole and cost only what changed: a dict that is frozen without being copied."""

from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from itertools import chain, compress
from operator import is_not
from typing import Final, Generic, TypeVar

V = TypeVar("V")

_PARTS: Final = 128
"""Of 10,000 entries the first write after `frozen` copies 80, and 128 looks tell what two frozen sets share."""


class FrozenDict(Mapping[str, V], Generic[V]):
    """What a `CopyOnWriteDict` held at one moment; it never changes. Of two moments, the parts that nobody wrote to in
    between are the same objects. `FrozenDict()` is empty.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[dict[str, V], ...] | None = None) -> None:
        self.parts = tuple({} for _ in range(_PARTS)) if parts is None else parts

    def __getitem__(self, key: str) -> V:
        return self.parts[hash(key) % _PARTS][key]

    def __contains__(self, key: object) -> bool:
        return key in self.parts[hash(key) % _PARTS]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __bool__(self) -> bool:
        return any(self.parts)

    def __repr__(self) -> str:
        return f"FrozenDict({dict(self.items())!r})"

    def get(self, key: str, default: V | None = None) -> V | None:  # type: ignore[override]
        return self.parts[hash(key) % _PARTS].get(key, default)

    def overlaid(self, values: Mapping[str, V]) -> "FrozenDict[V]":
        """Another one, in which `values` take the place of what stands there; the parts without any are shared."""
        parts = list(self.parts)
        for key, value in values.items():
            place = hash(key) % _PARTS
            parts[place] = {**parts[place], key: value}
        return FrozenDict(tuple(parts))

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def items(self) -> ItemsView[str, V]:
        return _Items(self)


class _Values(ValuesView[V]):
    _mapping: FrozenDict[V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(map(dict.values, self._mapping.parts))


class _Items(ItemsView[str, V]):
    _mapping: FrozenDict[V]

    def __iter__(self) -> Iterator[tuple[str, V]]:
        return chain.from_iterable(map(dict.items, self._mapping.parts))


class CopyOnWriteDict(MutableMapping[str, V], Generic[V]):
    """A dict in parts, by the hash of the key. `frozen` costs nothing; the next write to a part copies that part."""

    def __init__(self) -> None:
        self._frozen: FrozenDict[V] | None = FrozenDict()
        self._parts = list(self._frozen.parts)
        self._own: set[int] = set()

    def frozen(self) -> FrozenDict[V]:
        """What is in it now: the same object as long as nothing is written."""
        if self._frozen is None:
            self._frozen = FrozenDict(tuple(self._parts))
            self._own.clear()
        return self._frozen

    def __getitem__(self, key: str) -> V:
        return self._parts[hash(key) % _PARTS][key]

    def __setitem__(self, key: str, value: V) -> None:
        self._writable(key)[key] = value

    def __delitem__(self, key: str) -> None:
        del self._writable(key)[key]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def get(self, key: str, default: V | None = None) -> V | None:  # type: ignore[override]
        return self._parts[hash(key) % _PARTS].get(key, default)

    def _writable(self, key: str) -> dict[str, V]:
        """The part of `key`, no frozen set's any more."""
        place = hash(key) % _PARTS
        if place not in self._own:
            self._own.add(place)
            self._parts[place] = self._parts[place].copy()
        self._frozen = None
        return self._parts[place]


def unshared(old: Mapping[str, V], new: Mapping[str, V]) -> Iterator[tuple[Mapping[str, V], Mapping[str, V]]]:
    """What is to be compared when two sets are: nothing that they share. A key is in one pair only, on both sides."""
    if isinstance(old, FrozenDict) and isinstance(new, FrozenDict):
        both = zip(old.parts, new.parts, strict=True)
        yield from compress(both, map(is_not, old.parts, new.parts))
    elif old is not new:
        yield old, new
