#!/bin/sh
# The Python of Spark's workers on this machine. Java puts PySpark's zip archives first on PYTHONPATH. They hold no
# compiled modules, so that each process would compile what it imports. The installed package has them compiled.
packages=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) packages=${packages:+$packages:}$entry ;;
    esac
done
unset IFS
PYTHONPATH=$packages
export PYTHONPATH
case $2 in
pyspark.sql.worker.* | pyspark.sql.streaming.*)
    exec "${SERVICEBROKER_WORKER_PYTHON:-python3}" -P "${0%/*}/worker_start.py" "$@"
    ;;
esac
exec "${SERVICEBROKER_WORKER_PYTHON:-python3}" "$@"
