#!/usr/bin/env bash
# Both phases, a process a core; killed at any moment, the same command goes on. Then the trials and runs are copied.
#
#   studies/two_phases/phases.sh CLONE DATA OUT
set -euo pipefail
clone=$1 out=$3
mkdir -p "$out"
export ONEPASS_DATA=$2
one() { # one thread, on the core of its slot
  taskset -c "$CORE" nice -n 19 "$0" $1 --json >/dev/null 2>>"$2/queue.log" && echo "$(date -u +%FT%TZ) $1" >>"$2/done.log"
}
export -f one
for phase in one two; do
  "$clone/.venv/bin/python" "$clone/studies/two_phases/phases.py" "$out" "$phase" |
    xargs -P "$(nproc)" --process-slot-var=CORE -d '\n' -I{} bash -c 'one "$1" "$2"' "$clone/.venv/bin/onepass" {} "$out"
done
cd "$(dirname "$0")/../.."
mkdir -p results/two-phases/trials
for file in "$out"/trials/tune-*/tune.json; do
  method=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["method"])' "$file")
  cp "$file" "results/two-phases/trials/$method.json"
done
for file in "$out"/runs/*/seed-*/result.json; do
  run=$(dirname "$file")
  folder=results/two-phases/$(basename "$(dirname "$run")")/$(basename "$run")
  mkdir -p "$folder" && cp "$file" "$folder/"
done
