"""``make test`` brings a browser where there is none, and says so where it can't."""

import os
import sys
from pathlib import Path

import pytest

from book.press import browser

pytest_plugins = ["pytester"]
BRINGS = "#!/bin/sh\necho '#!/bin/sh' >{0} && chmod +x {0}"  # a program that starts


def write_program(path: Path, text: str = "#!/bin/sh") -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a browser and without a network: the folder is its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=None)
    for name in ("CHROMIUM", "FIREFOX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(browser, "playwrights_own", lambda kind: str(tmp_path / "own"))
    for name in ("sh", "chmod"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    write_program(tmp_path / "python", "#!/bin/sh\nexit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def test_browser_that_is_there_is_taken_and_nothing_is_installed(machine, capfd):
    write_program(machine / "chromium-browser", "#!/bin/sh\nexit 1")  # Ubuntu's, without its snap
    write_program(machine / "google-chrome")
    write_program(machine / "firefox-esr")
    assert browser.find("chromium") == str(machine / "google-chrome")
    assert browser.main() == 0
    assert capfd.readouterr().out == ""


def test_browser_that_the_reader_names_is_taken_first(machine, monkeypatch):
    write_program(machine / "chromium")
    write_program(machine / "mine")
    monkeypatch.setenv("CHROMIUM", str(machine / "mine"))
    assert browser.find("chromium") == str(machine / "mine")


def test_playwrights_own_is_installed(machine, capfd):
    write_program(machine / "python", BRINGS.format(machine / "own"))
    assert browser.main() == 0
    assert browser.find("chromium") == str(machine / "own")
    assert "-m playwright install chromium" in capfd.readouterr().out


@pytest.mark.parametrize("user", [0, 1000], ids=["root", "another user"])
def test_only_root_installs_that_of_the_system(user, machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    write_program(machine / "apt-get", BRINGS.format(machine / "chromium"))
    assert browser.main() == 0
    assert (browser.find("chromium") is not None) == (user == 0)


@pytest.mark.parametrize("ci", ["", "true"])
def test_machine_that_gets_no_browser_fails_only_in_ci(ci, machine, monkeypatch, capfd):
    monkeypatch.setenv("CI", ci)
    assert browser.main() == bool(ci)
    assert browser.MISSING in capfd.readouterr().out


@pytest.mark.slow
def test_skipped_pages_are_the_last_line_of_the_run(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pytester.makepyfile(
        f"""
        import pytest
        @pytest.mark.parametrize("i", range(3))
        def test_page(i): pytest.skip({browser.MISSING!r})
        def test_another(): pytest.skip("another reason")
        """
    )
    run = pytester.runpytest_subprocess("-q", "-p", "untested", "-n", "1")
    assert run.ret == 0
    assert run.outlines[-1] == f"NOT TESTED: 3 tests of the pages, {browser.MISSING}"
