"""Tallyflow in Dagster: run, watch, repair and prove the pipelines. The only importer of both `pipelines` and `resources`.

Dagster is the control plane, never the stream: a pipeline's runner is a detached process (`resources.streaming_jobs`), runs are short, and
sensors observe.

    pipeline_files.py   the directory of pipeline files, sound ones and faulty ones
    definitions.py      everything below as one `Definitions`, from that directory
"""
