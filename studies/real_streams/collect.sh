#!/usr/bin/env bash
# Bring the finished runs of the queue into the repository, in this version's format.
#
#   studies/real_streams/collect.sh OUT
set -euo pipefail
cd "$(dirname "$0")/../.."
for file in "$1"/*/seed-*/result.json; do
  run=$(dirname "$file")
  folder=results/$(basename "$(dirname "$run")" | cut -d- -f1)/$(basename "$(dirname "$run")")
  mkdir -p "$folder"
  [ -e "$folder/$(basename "$run")/result.json" ] || { mkdir -p "$folder/$(basename "$run")" && cp "$file" "$folder/$(basename "$run")/"; }
done
.venv/bin/python tools/restamp.py results
