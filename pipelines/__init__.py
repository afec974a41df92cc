"""The data path of Tallyflow: its packages are rooms, and a record passes them in this order. Imports no Dagster.

    types error_classes expressions protocol key_store config connectors control engine   used by every room
    Kafka topic/partition
      | ingest/    offsets -> raw frames                     each offset in exactly one frame
    JetStream tf-<pipeline>-raw        raw.<source>.<partition>
      | process/   parse, filter, compute, dedup, mapping    rejected records -> dlq stream
    JetStream tf-<pipeline>-out        out.<bucket>          a deterministic function of the raw log
      | sink/      frames -> chunks -> inserts               one token per chunk, by position
    ClickHouse table
    runner/ is one running pipeline; maintenance/, dead_letters/ and proof/ work on it from outside; demo/ and cli/ are the command.

protocol/ carries the guarantee: records (frames, positions), append (the position rule), ledger (the chain: plan, done), lease (one
writer). The legs of ingest, process and sink work in long-lived tasks of one Spark query.
"""
