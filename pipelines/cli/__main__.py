"""`python -m pipelines.cli`: the `tallyflow` command without its script."""

from pipelines.cli.app import app

if __name__ == "__main__":
    app()
