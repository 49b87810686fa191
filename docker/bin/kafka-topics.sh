#!/bin/sh
# `kwire topics` with the options of Apache Kafka's tool, for compose files whose checks of health and first steps call
# that: --list, --describe, --create, --alter and --delete.
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
if [ "$action" = list ]; then  # scripts look for a name in a line of its own
    set -- --names "$@"
    [ "$hidden" ] || set -- --internal "$@"
fi
exec kwire topics "$action" ${topic:+"$topic"} "$@"
