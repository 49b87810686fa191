#!/bin/sh
# `kwire topics` with options of Apache Kafka's tool, for compose files that use it in health checks and setup steps:
# --list, --describe, --create, --alter and --delete.
count=$# action='' topic='' hidden=''
while [ "$count" -gt 0 ]; do
    count=$((count - 1))
    case $1 in
    --list | --describe | --create | --alter | --delete) action=${1#--} ;;
    --topic) topic=$2 && shift && count=$((count - 1)) ;;
    --topic=*) topic=${1#*=} ;;
    --exclude-internal) hidden=yes ;;
    --under-replicated-partitions) set -- "$@" --under-replicated ;;
    *) set -- "$@" "$1" ;;
    esac
    shift
done
if [ -z "$action" ]; then
    echo 'kafka-topics.sh: give one of --list, --describe, --create, --alter, --delete' >&2
    exit 1
fi
if [ "$action" = list ]; then  # scripts expect one name per line
    set -- --names "$@"
    [ "$hidden" ] || set -- --internal "$@"
fi
exec kwire topics "$action" ${topic:+"$topic"} "$@"
