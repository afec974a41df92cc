"""A preview: what the pipeline would make of some records now, step by step, without Spark, without a server and without any effect.

given.py       records of a file, or the newest of the topic, as raw frames
declared.py    the table as the mapping describes it, and the program for it
trial.py       frames through the steps of a program, portion by portion, with the state of dedup
run.py         the outcome of each record at each step
difference.py  two programs over the same frames, record by record
stored.py      frames of raw, and dead letters as frames
readable.py    rows as people read them
cases.py       the cases of a pipeline file
recording.py   expectations of cases, written into their file
"""
