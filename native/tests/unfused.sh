#!/bin/sh
# Fails if the objects hold fused multiply-adds, whose results would differ from other levels'.
# unfused.sh OBJDUMP OBJECT...
set -eu
objdump=$1
shift
code=$("$objdump" -d "$@")
echo "$code" | grep -q '<.*>:' || { echo "no code in $*" >&2; exit 1; }
if echo "$code" | grep -E '\<vfn?m(add|sub)'; then
    exit 1
fi
