"""The `tallyflow` command. A composition root: the one place under pipelines/, with demo.py, that knows the local servers."""
