#!/bin/bash
# `executor`: what Spark asks of an image on Kubernetes, by the variables that it sets in the pod. Anything else: a command of tallyflow.
set -euo pipefail

if [ "${1:-}" != executor ]; then
    exec tallyflow "$@"
fi

# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on, in the order of their numbers.
options=()
for number in $(compgen -e | sed -n 's/^SPARK_JAVA_OPT_//p' | sort -n); do
    name="SPARK_JAVA_OPT_$number"
    options+=("${!name}")
done
exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
