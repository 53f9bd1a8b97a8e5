"""Without the libraries of the extra, and for those who use none of it."""

import subprocess
import sys

import pytest

WITHOUT_GRPC = "import sys; sys.modules['grpc'] = None; "


@pytest.mark.parametrize("package", ["discovery", "registry"])
def test_an_etcd_url_without_the_extra_says_what_to_install(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_GRPC}import {package}; {package}.open('etcd://a')"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ValueError: etcd:// cannot be used: the module 'grpc' is not installed; ")
    assert "pip install '.[etcd]'" in last


def test_other_urls_import_no_grpc() -> None:
    program = "import discovery, registry, sys; discovery.open('file:///tmp'); registry.open('file:///tmp'); print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n"
