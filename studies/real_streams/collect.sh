#!/usr/bin/env bash
# Bring the finished runs of the queue into the repository, in this version's format.
#
#   studies/real_streams/collect.sh OUT
set -euo pipefail
cd "$(dirname "$0")/../.."
for file in "$1"/*/seed-*/result.json; do
  run=$(dirname "$file")
  name=$(basename "$(dirname "$run")")
  folder=results/$(cut -d- -f1 <<<"$name")/$name
  # One method, many settings: of Patch-LDA only the default stands among the others.
  ! grep -Eq '"(filters)": (100|200|1000|1500|2000),|"reach": 0.0' "$file" || folder=results/never-forget-test/$name
  ! grep -q '"stream": "mini-imagenet"' "$file" || folder=results/large-images/$name
  ! { grep -Eq '"fraction": 0.(0|2)' "$file" && grep -q '"stream": "cifar10"' "$file"; } || folder=results/few/$name
  # Measured on held-back images: changes on a fifth of a stream, sizes on the whole.
  ! grep -q '"validate": true' "$file" || folder=results/never-forget-sizes/$name
  ! { grep -q '"validate": true' "$file" && grep -q '"fraction": 0.2' "$file"; } || folder=results/never-forget-changes/$name
  # With a network beside it, and alone of the sizes that such a pair is compared with.
  ! { grep -q '"validate": true' "$file" && grep -q '"fraction": 0.2' "$file" && grep -Eq '"expert": true|"filters": (400|1000),' "$file"; } || folder=results/never-forget-beside/$name
  ! grep -q '"precision": "bf16"' "$file" || folder=results/bf16/$name
  mkdir -p "$folder"
  [ -e "$folder/$(basename "$run")/result.json" ] || { mkdir -p "$folder/$(basename "$run")" && cp "$file" "$folder/$(basename "$run")/"; }
done
.venv/bin/python tools/restamp.py results
