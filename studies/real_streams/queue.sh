#!/usr/bin/env bash
# Do the runs of runs.py from a frozen clone, one a core, at the lowest priority. Killed at any moment, the same command goes on.
#
#   studies/real_streams/queue.sh CLONE DATA OUT
#
# CLONE has a .venv of its own (make .venv/ready) and is not touched while the queue runs; DATA holds the data sets.
set -euo pipefail
clone=$1 export_data=$2 out=$3
mkdir -p "$out"
export ONEPASS_DATA=$export_data
for folder in cifar10{,0}{,-er-fsl,-resnet18} never-forget-{test,changes,sizes,beside} few large-images bf16; do # these are done
  [ ! -d "$clone/results/$folder" ] || cp -rn "$clone/results/$folder/." "$out/"
done
one() { # a run on the core of its slot: one thread, whatever else goes on
  taskset -c "$CORE" nice -n 19 "$0" run $1 --jobs 1 --out "$2" --checkpoint-seconds 60 --json >/dev/null 2>>"$2/queue.log" \
    && echo "$(date -u +%FT%TZ) $1" >>"$2/done.log"
}
export -f one
python3 "$(dirname "$0")/runs.py" |
  xargs -P "$(nproc)" --process-slot-var=CORE -d '\n' -I{} bash -c 'one "$1" "$2"' "$clone/.venv/bin/onepass" {} "$out"
