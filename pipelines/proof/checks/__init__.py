"""Is the table what the pipeline promises? Nine checks, each a sentence with its numbers.

Thresholds are the `checks` of the pipeline file.

judge.py   pure: facts in, verdict out
facts.py   what is asked of the ledger, Kafka and ClickHouse (sql/checks/); reads only
run.py     one look at a pipeline: facts, then verdicts
"""
