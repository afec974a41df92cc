"""The plan of a function over DataFrames: what it may contain, and the positions of the records carried through it.

In: Spark's analyzed plan, as objects of the JVM. Out: the same plan over other rows, with their position beside the outputs. The optimized
plan is of no use: over no rows it is empty, whatever the function says.
"""

from collections.abc import Iterator, Sequence
from typing import Any

ROW_WISE = frozenset({"Project", "Filter", "SubqueryAlias", "View"})
"""The nodes that take each row by itself, and leave the rows in their order."""
UDFS = frozenset({100, 101, 200, 250})
"""The kinds of Python UDFs that return a value per row: plain, with Arrow, of pandas, of pyarrow (`pyspark.util.PythonEvalType`)."""
_INSTEAD = {
    "Aggregate": "an aggregate: records cannot be counted or grouped here; do that in ClickHouse, or in a view of the table",
    "Deduplicate": "dropDuplicates: write a transform `type: dedup`",
    "Distinct": "distinct: write a transform `type: dedup`",
    "Sort": "a sort: the records keep their order; sort in the query of the table",
    "GlobalLimit": "a limit: to drop records, write a condition, .where(...)",
    "LocalLimit": "a limit: to drop records, write a condition, .where(...)",
    "Offset": "an offset: to drop records, write a condition, .where(...)",
    "Tail": "a tail: to drop records, write a condition, .where(...)",
    "Window": "a window over other records: each record stands alone; do that in ClickHouse",
    "Join": "a join: each record stands alone; write the other table as a literal map in the code, or join in ClickHouse",
    "Union": "a union: one record cannot become several; write F.when(...).otherwise(...)",
    "Sample": "a sample: choose by a condition on a field, such as F.xxhash64('id') % 100 < 10",
    "Generate": "explode: one record cannot become several; keep the array as JSON text",
    "Repartition": "a repartitioning: the pipeline deals the records out itself; leave it out",
    "RepartitionByExpression": "a repartitioning: the pipeline deals the records out itself; leave it out",
    "MapInPandas": "mapInPandas, which may return other rows: write a pandas UDF in withColumn or select",
    "MapInArrow": "mapInArrow, which may return other rows: write a pandas UDF in withColumn or select",
    "LogicalRDD": "rows that are not those of its argument: use no RDD, and no other DataFrame",
    "LocalRelation": "rows that are not those of its argument: use no other DataFrame",
    "Range": "rows that are not those of its argument: use no other DataFrame",
    "CollectMetrics": "observe: leave it out",
}
_CLOCKS = frozenset({"CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now", "CurrentBatchTimestamp"})
_SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery", "FunctionTableSubqueryArgumentExpression"})


class RefusedError(Exception):
    """The plan does more than take each row by itself."""


def items(sequence: Any) -> list[Any]:
    """Return the members of a sequence of Scala."""
    return [sequence.apply(index) for index in range(sequence.size())]


def check(plan: Any, argument: Any) -> None:
    """Raise RefusedError, with what to do instead, unless each row of `plan` comes from one row of `argument` alone, in its order."""
    if plan.equals(argument):
        return
    name = _name(plan)
    if name not in ROW_WISE:
        reason = _INSTEAD.get(name, f"a node {name}, which is not allowed")
        raise RefusedError(f"does more than take each record by itself: its plan has {reason}")
    for expression in items(plan.expressions()):
        _check_expression(expression)
    check(plan.children().head(), argument)


def _check_expression(expression: Any) -> None:
    for child in items(expression.children()):
        _check_expression(child)
    name = _name(expression)
    if name in _SUBQUERIES:
        raise RefusedError("reads other rows: its plan has a subquery; write the values as literals in the code")
    if name in _CLOCKS:
        raise RefusedError(f"reads the clock, by {expression.prettyName()}: take a time of the record, such as a column of its arrival")
    if not expression.deterministic():
        named = f"UDF {expression.name()}" if name == "PythonUDF" else expression.prettyName()
        raise RefusedError(f"gives another value each time, by {named}: a record that is processed again must give the same row")
    if name == "PythonUDF" and expression.evalType() not in UDFS:
        raise RefusedError(f"calls UDF {expression.name()}, which takes iterators or groups: let it take and return a value, or a Series")


def python_udfs(plan: Any) -> Iterator[Any]:
    """Yield the Python UDFs of a plan that `check` has passed."""
    for expression in items(plan.expressions()):
        yield from _udfs_of(expression)
    for child in items(plan.children()):
        yield from python_udfs(child)


def _udfs_of(expression: Any) -> Iterator[Any]:
    if _name(expression) == "PythonUDF":
        yield expression
    for child in items(expression.children()):
        yield from _udfs_of(child)


class Rewriting:
    """Rewriting of plans that `check` has passed: `rows` stands for `argument`, and the attribute `position` of `rows` comes out first."""

    def __init__(self, jvm: Any, argument: Any, rows: Any, position: Any) -> None:
        self._jvm, self._argument, self._rows, self._position = jvm, argument, rows, position

    def of(self, plan: Any, outputs: Sequence[Any]) -> Any:
        """Return the plan that gives the position and the attributes `outputs` of `plan`."""
        return self._project([self._position, *outputs], self._carrying(plan))

    def _carrying(self, plan: Any) -> Any:
        if plan.equals(self._argument):
            return self._rows
        child = self._carrying(plan.children().head())
        if _name(plan) == "Project":
            return self._project([*items(plan.projectList()), self._position], child)
        return plan.withNewChildren(self._jvm.PythonUtils.toSeq([child]))

    def _project(self, listed: Sequence[Any], child: Any) -> Any:
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project(self._jvm.PythonUtils.toSeq(list(listed)), child)


def _name(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name
