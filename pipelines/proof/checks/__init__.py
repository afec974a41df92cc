"""Nine checks of the table, each a sentence with its numbers. Thresholds are the `checks` of the pipeline file.

evaluate.py   pure: facts in, results out
facts.py      the answers of the ledger, Kafka and ClickHouse (sql/checks/); reads only
run.py        one look at a pipeline: facts, then results
"""
