"""The data path of Tallyflow, in the order of the data. Imports no Dagster.

    Kafka topic/partition
      | ingest.py     offsets -> raw frames                     each offset in exactly one frame
    JetStream tf-<pipeline>-raw        raw.<source>.<partition>
      | parse.py      JSON -> typed columns                     rejected records -> dlq.py
      | transform.py  columns -> the table's columns and types  rejected records -> dlq.py
      | dedup.py      one record per key and window             state/ remembers the keys
    JetStream tf-<pipeline>-out        out.<bucket>             a deterministic function of the raw log
      | sink.py       frames -> chunks -> inserts               one token per chunk, by position
    ClickHouse table

records.py (frames, positions), append.py (the position rule), ledger.py (the chain: plan, done) and lease.py (one writer) carry the
guarantee; legs/ runs the stages as three Spark queries (queries.py); runner.py is one running pipeline; connectors/ hold the only sockets.
From outside the stream: cli/ (the command), audit/ and verification/ (proofs), letters/ (dead letters), key_store/ (the dedup store).
"""
