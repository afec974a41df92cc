"""The readers of all proofs: Kafka and the table through clients of their own, the pipeline's streams frame by frame. Read only."""
