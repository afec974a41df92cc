"""Functions of the user's own in Python, run in a process of their own: the function host.

code.py      the source files of a function as one archive, known by its digest
spec.py      what a program says about a function, and the codes of its failures
child.py     the host: a program that imports nothing of ours
spark_child.py, spark_plan.py, spark_rows.py, spark_errors.py
             the host of a function over DataFrames: session, plan, rows, words
host.py      a host's process: start, call, time limit, memory limit, end
calls.py     rows through a function: what passes, what is dropped, and the rows at fault
"""

REFERENCE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
"""The form of a function's name: `package.module:name`. It is here because the models of the file do without pyarrow."""
