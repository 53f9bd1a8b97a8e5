"""Plugins of installed packages: found by name, loaded when used, and each fault said in one line with its package."""

import subprocess
import sys
from pathlib import Path

import pytest

from adsum.entry_points import PluginError, PluginGroup
from tests.installed_package import install, see

COLOURS = PluginGroup("adsum.colours", "colour", ("red", "green"))


def declare(
    place: Path, monkeypatch: pytest.MonkeyPatch, package: str, *names: str, module: str = "COLOUR = 5"
) -> None:
    points = dict.fromkeys(names, f"{package}:COLOUR")
    see(monkeypatch, install(place / package, package, {"adsum.colours": points}, module=module))


def test_a_name_that_nobody_declares_is_nothing() -> None:
    assert COLOURS.load("mauve") is None
    assert COLOURS.packages() == {}


def test_a_name_that_is_declared_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(tmp_path, monkeypatch, "colourful", "mauve", "ecru")
    found = COLOURS.load("mauve")
    assert found is not None
    assert (found.name, found.package, found.value) == ("mauve", "colourful 1.0", 5)
    assert COLOURS.packages() == {"ecru": "colourful 1.0", "mauve": "colourful 1.0"}
    assert COLOURS.load("puce") is None


def test_a_name_of_two_packages_names_both_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path, monkeypatch, "first_colours", "mauve")
    declare(tmp_path, monkeypatch, "other_colours", "mauve", "ecru")
    assert COLOURS.load("ecru") is not None
    with pytest.raises(PluginError) as refused:
        COLOURS.load("mauve")
    assert str(refused.value) == (
        "two installed packages declare the colour 'mauve': first_colours 1.0 and other_colours 1.0; uninstall one of "
        "them, or rename its entry point in the group adsum.colours"
    )


def test_a_name_of_a_built_in_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(tmp_path, monkeypatch, "reddish", "red", "mauve")
    for ask in (lambda: COLOURS.load("mauve"), COLOURS.packages):
        with pytest.raises(PluginError) as refused:
            ask()
        assert str(refused.value) == (
            "the installed package reddish 1.0 declares the colour 'red', which adsum has itself; rename its entry point "
            "in the group adsum.colours, or uninstall the package"
        )


def test_a_package_that_is_installed_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an editable install before an older one: Python takes the first, whatever its version."""
    for place, version in (("old", "1.0"), ("new", "2.0")):
        points = {"adsum.colours": {"mauve": "twin_colours:COLOUR"}}
        see(
            monkeypatch,
            install(tmp_path / place, "twin_colours", points, version=version, module="COLOUR = 5"),
        )
    found = COLOURS.load("mauve")
    assert found is not None
    assert found.package == "twin_colours 2.0"


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        ("import missing_paint", "ModuleNotFoundError: No module named 'missing_paint'"),
        ("COLOR = 5", "AttributeError: module 'broken_colours' has no attribute 'COLOUR'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("raise SystemExit('usage')", "SystemExit: usage"),
        ("def", "SyntaxError: invalid syntax (broken_colours.py, line 1)"),
    ],
)
def test_what_cannot_be_imported_is_an_error_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, cause: str
) -> None:
    declare(tmp_path, monkeypatch, "broken_colours", "mauve", module=module)
    assert list(COLOURS.packages()) == ["mauve"]
    with pytest.raises(PluginError) as refused:
        COLOURS.load("mauve")
    assert str(refused.value) == (
        f"the colour 'mauve' of the installed package broken_colours 1.0 cannot be loaded from broken_colours:COLOUR: "
        f"{cause}; mend, update or uninstall that package"
    )


def test_the_cause_is_cut_where_it_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(tmp_path, monkeypatch, "wordy_colours", "mauve", module="raise RuntimeError('x' * 10_000)")
    with pytest.raises(PluginError) as refused:
        COLOURS.load("mauve")
    assert len(str(refused.value)) < 600


def test_entry_points_that_cannot_be_read_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = install(tmp_path, "garbled", {})
    (place / "garbled-1.0.dist-info" / "entry_points.txt").write_text("[adsum.colours]\nno equals sign\n")
    see(monkeypatch, place)
    with pytest.raises(
        PluginError, match="the entry points of the installed packages cannot be read: TypeError"
    ):
        COLOURS.load("mauve")


def test_nothing_is_looked_at_before_it_is_asked_for() -> None:
    """Reading what is installed takes up to 200 ms, which a program that uses no plugin does not pay."""
    program = (
        "import sys, discovery.opening, registry.opening\n"
        "discovery.opening.open_source('memory://a')\n"
        "registry.open('memory://a')\n"
        "assert 'importlib.metadata' not in sys.modules\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
