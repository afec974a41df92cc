"""Lint: what a sound pipeline file says and probably does not mean.

rules.py   the table of rules: code, what is found, how to fix it
reads.py   the fields that nothing reads
lines.py   the lines of a file: where a finding stands, and which comments ignore it
run.py     all rules over a file
docs.py    the page of the rules
"""
