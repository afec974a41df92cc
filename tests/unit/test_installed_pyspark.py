"""The path of a Python worker: without the copies of the installed pyspark, with what another Spark needs."""

import os
import sys
from pathlib import Path

import pyspark
import pytest

from pipelines.installed_pyspark import leave_out_copies

PACKAGE = Path(pyspark.__file__).parent
COPIES = [str(PACKAGE / "python" / "lib" / "pyspark.zip"), str(PACKAGE / "jars" / "spark-core.jar")]
OTHERS = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/jars/spark-core.jar"]


def test_copies_inside_the_package_leave_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [entry for entry in sys.path if not entry.endswith(".zip")]
    monkeypatch.setattr(sys, "path", [*COPIES, *OTHERS, *usual])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*COPIES, *OTHERS, "functions"]))
    leave_out_copies()
    assert sys.path == [*OTHERS, *usual]
    assert os.environ["PYTHONPATH"] == os.pathsep.join([*OTHERS, "functions"])


def test_a_link_to_the_package_is_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(PACKAGE.parent)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "linked" / "pyspark" / "python" / "lib" / "pyspark.zip"), str(PACKAGE.parent)])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    leave_out_copies()
    assert sys.path == [str(PACKAGE.parent)]
    assert "PYTHONPATH" not in os.environ


def test_where_only_a_zip_is_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*COPIES])
    leave_out_copies()
    assert sys.path == COPIES
