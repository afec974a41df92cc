"""`tallyflow run` whose epochs end every two seconds. Started as a script, with the arguments of `tallyflow`."""

from pipelines.cli.app import app
from pipelines.runner.spark_engine import SparkEngine


class ShortEpochs(SparkEngine):
    """Runs as a user's runs do, but for its borders."""

    epoch_seconds = 2.0


if __name__ == "__main__":
    app(obj=ShortEpochs())
