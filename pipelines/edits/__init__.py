"""Edits of a pipeline that has run: what a changed file means for it, and the way there, carried out.

last_run.py    the file with which the pipeline was last started here
changes.py     the differences of two files, and what each needs
columns.py     the statements that make a table fit the edited mapping
plan.py        all of it as steps, in the order in which they lose nothing
apply.py       the steps, carried out
"""
