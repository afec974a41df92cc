"""Programs of Debian packages that some tests need. Without one they skip and say so; in CI they fail."""

import os
import shutil

import pytest


def program(*names: str, package: str) -> str:
    """The path of the first of these programs that is installed; skips or fails the test when none is."""
    # A user's PATH lacks /usr/sbin, where Debian puts servers.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    missing = f"the package {package} is not installed"
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(missing)
    pytest.fail(f"{missing}, and CI is set: here a skipped test would prove nothing", pytrace=False)
