#!/bin/sh
# `kwire topics` with the options of Apache Kafka's tool, for compose files whose checks of health and first steps call
# that: --list, --describe, --create, --alter and --delete.
count=$# action='' topic=''
while [ "$count" -gt 0 ]; do
    count=$((count - 1))
    case $1 in
    --list | --describe | --create | --alter | --delete) action=${1#--} ;;
    --topic) topic=$2 && shift && count=$((count - 1)) ;;
    --topic=*) topic=${1#*=} ;;
    --exclude-internal) ;;
    *) set -- "$@" "$1" ;;
    esac
    shift
done
if [ -z "$action" ]; then
    echo 'kafka-topics.sh: give one of --list, --describe, --create, --alter, --delete' >&2
    exit 1
fi
exec kwire topics "$action" ${topic:+"$topic"} "$@"
