"""Nine checks of the table, each a sentence with its numbers. Thresholds are the `checks` of the pipeline file.

evaluate.py   pure: facts in, results out
facts.py      what the ledger, Kafka and ClickHouse answer (sql/checks/); reads only
run.py        one look at a pipeline: facts, then results
"""
