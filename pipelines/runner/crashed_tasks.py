"""Which tasks of Spark ended because their Python worker had ended: what only Spark can tell of a process on another host."""

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_CRASHED = "Python worker exited unexpectedly"
"""What Spark says, measured with 4.3, when all that a worker had open was closed by its kernel: no thread of it runs any more."""
_MOST_TASKS = 1000


def crashed_tasks(session: SparkSession) -> set[str]:
    """Return the ids of the newest tasks of the stages at work whose Python worker has ended under them.

    Tasks that ended with an error, or with their executor, are not among them: their process may live. Empty if the JVM does not answer.
    """
    context, jvm = session.sparkContext, session._jvm
    assert jvm is not None
    try:
        as_list = jvm.scala.jdk.javaapi.CollectionConverters.asJava
        store = context._jsc.sc().statusStore()
        stages = context.statusTracker().getActiveStageIds()
        tasks = [task for stage in stages for task in as_list(store.taskList(stage, 0, _MOST_TASKS)) if task.status() == "FAILED"]
        return {str(task.taskId()) for task in tasks if _CRASHED in task.errorMessage().get()}
    except Py4JError:
        return set()
