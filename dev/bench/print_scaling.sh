#!/usr/bin/env bash
# Prints dev/docs/scaling.md with what its commands print now: each command, from `    ./train_gpt2_zero` to a line that
# does not end with \, is run, and the indented lines below it are replaced. No GPU and no ranks are needed.
#
#     dev/bench/print_scaling.sh TRAINER > scaling.md && mv scaling.md dev/docs
set -eu
cd "$(dirname "$0")/../.."
trainer=$1
command='' quoting=''
while IFS= read -r line; do
    if [[ -n $command || $line == "    ./train_gpt2_zero "* ]]; then
        [ -z "$quoting" ] || echo
        quoting=''
        echo "$line"
        command+=" ${line%\\}"
        [[ $line != *\\ ]] || continue
        eval "$(printf %q "$trainer") ${command#* ./train_gpt2_zero }" | sed 's/^./    &/'
        command='' quoting=1
    elif [ -z "$quoting" ]; then
        echo "$line"
    elif [[ -n $line && $line != "    "* ]]; then
        printf '\n%s\n' "$line"
        quoting=''
    fi
done < dev/docs/scaling.md
