"""What only Spark can tell of its tasks, and be told: which crashed, in which executor each ran, and where the next ones shall run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

_CRASHED = "Python worker exited unexpectedly"
"""What Spark says, measured with 4.3, when all that a worker had open was closed by its kernel: no thread of it runs any more."""
_MOST_TASKS = 1000
_DRIVER = "driver"
"""The executor of a local master, which has no other."""


def crashed_tasks(session: SparkSession) -> set[str]:
    """Return the ids of the newest tasks of the stages at work whose Python worker has ended under them.

    Tasks that ended with an error, or with their executor, are not among them: their process may live. Empty if the JVM does not answer.
    """
    try:
        tasks = [task for task in _tasks(session, session.sparkContext.statusTracker().getActiveStageIds()) if task.status() == "FAILED"]
        return {str(task.taskId()) for task in tasks if _CRASHED in task.errorMessage().get()}
    except Py4JError:
        return set()


def places_of_tasks(session: SparkSession) -> Mapping[str, str]:
    """Return the executor of each task of the newest job of this thread's group, by the task's id, as `rows_at` takes it.

    Empty for a local master, and if the JVM does not answer.
    """
    context = session.sparkContext
    try:
        tracker = context.statusTracker()
        newest = tracker.getJobInfo(max(tracker.getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id")), default=-1))
        tasks = _tasks(session, newest.stageIds if newest else ())
        return {str(task.taskId()): f"executor_{task.host()}_{task.executorId()}" for task in tasks if task.executorId() != _DRIVER}
    except Py4JError:
        return {}


def _tasks(session: SparkSession, stages: Iterable[int]) -> Iterator[Any]:
    jvm = session._jvm
    assert jvm is not None
    as_list = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    store = session.sparkContext._jsc.sc().statusStore()
    for stage in stages:
        yield from as_list(store.taskList(stage, 0, _MOST_TASKS))


def rows_at(session: SparkSession, places: Sequence[str]) -> DataFrame:
    """Return a DataFrame without columns, of a partition for each place; its task prefers to run there, or runs anywhere if it is empty.

    Spark deals the tasks of any other DataFrame to all executors with a free slot in turns. A place is the text form of Spark's
    `ExecutorCacheTaskLocation`; an executor that is gone is no preference.
    """
    jvm = session._jvm
    assert jvm is not None
    as_scala, rows = jvm.scala.jdk.javaapi.CollectionConverters.asScala, jvm.java.util.ArrayList()
    empty = jvm.org.apache.spark.sql.RowFactory.create(jvm.java.util.ArrayList().toArray())
    for place in places:
        preferred = jvm.java.util.ArrayList([place] if place else [])
        rows.add(jvm.scala.Tuple2(empty, as_scala(preferred).toList()))
    row_class = jvm.scala.reflect.ClassTag.apply(empty.getClass())
    partitions = session.sparkContext._jsc.sc().makeRDD(as_scala(rows).toList(), row_class).toJavaRDD()
    return DataFrame(session._jsparkSession.createDataFrame(partitions, jvm.org.apache.spark.sql.types.StructType()), session)
