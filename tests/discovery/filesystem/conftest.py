from pathlib import Path

import pytest


@pytest.fixture
def component(tmp_path: Path) -> Path:
    path = tmp_path / "prod" / "decode"
    path.mkdir(parents=True)
    return path
