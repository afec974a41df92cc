"""`tallyflow run` that adds lanes after half a second of large plans and takes them away after twenty seconds without: no case waits long.

Its epochs are short: a case has several borders.

Started as a script, with the arguments of `tallyflow`.
"""

from pipelines.cli.app import app
from pipelines.runner.scaling import Limits
from pipelines.runner.spark_engine import SparkEngine


class EagerEngine(SparkEngine):
    """Runs as a user's runs do, but for its limits."""

    limits = Limits(busy_seconds=0.5, quiet_seconds=20.0)
    epoch_seconds = 10.0


if __name__ == "__main__":
    app(obj=EagerEngine())
