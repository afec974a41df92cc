"""A test whose program is missing is skipped where somebody develops, and fails where its skip would pass for proof."""

from pathlib import Path

import pytest
from support.packages import program


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [("true", pytest.fail.Exception), ("1", pytest.fail.Exception), ("", pytest.skip.Exception), ("false", pytest.skip.Exception)],
)
def test_a_missing_program_fails_in_ci_and_is_skipped_elsewhere(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="the package no-such-package is not installed"):
        program("no-such-program", package="no-such-package")


def test_the_first_program_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "second").write_text("#!/bin/sh\n")
    (tmp_path / "second").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program("first", "second", package="either") == str(tmp_path / "second")
