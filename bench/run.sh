#!/usr/bin/env bash
# Measures speed, size and overhead on this machine and prints one table.
#   bench/run.sh            about ten minutes
#   bench/run.sh --short    about four, for development: rougher figures
# All traffic stays on loopback, or in a network namespace that goes with it. Each part is bounded in time, starts what it
# needs for itself and removes it again. Ends with 0 unless a part failed or a
# ratio fell below its floor; a missed target is shown, not an error.
set -euo pipefail
cd "$(dirname "$0")/.."

watch=45s rounds=10 round=400ms load=20s questions=3s nodes=1000 calls=30 waiting=100 mixed=10s slices=25 crashes=20 storm=10s beside=3 third=500ms
case ${1:-} in
  '') ;;
  --short) watch=20s rounds=5 round=200ms load=5s questions=1s nodes=300 calls=8 waiting=30 mixed=4s slices=8 crashes=8 storm=4s beside=1 third=200ms ;;
  *) echo "usage: bench/run.sh [--short]" >&2; exit 2 ;;
esac

for b in telltaled telltale-agent; do
  [ -x "bin/$b" ] || { echo "bin/$b is missing: run 'make build' first" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # the database runs as another user and passes through
results=$work/results
: >"$results"
go build -o "$work/bench/" ./bench/agent ./bench/probe ./bench/ingest ./bench/calls ./bench/connector ./bench/tasks ./bench/events ./bench/trace

postgres=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
cat <<MACHINE
machine:    $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1), $(nproc) CPUs, $(awk '/^MemTotal/{printf "%.1f GiB", $2/1048576}' /proc/meminfo)
kernel:     $(uname -sr)
go:         $(go version | cut -d' ' -f3-)
postgresql: $("${postgres:+$postgres/}postgres" --version 2>/dev/null || echo unknown)
revision:   $(git describe --always --dirty 2>/dev/null || echo unknown)
load:       $(cut -d' ' -f1-3 /proc/loadavg) at $(date -u +%Y-%m-%dT%H:%M:%SZ)

MACHINE

failed=()
part() { # part NAME SECONDS ARGUMENTS...: one program, stopped after its time
  local name=$1 limit=$2 code=0
  shift 2
  TMPDIR=$work timeout --foreground --signal=TERM --kill-after=40 "$limit" "$work/bench/$name" --results "$results" "$@" || code=$?
  if [ "$code" != 0 ]; then
    [ "$code" != 124 ] || echo "bench/$name: did not end within $limit s" >&2
    failed+=("$name")
  fi
  echo
}

root() { # root NAME WHY SECONDS ARGUMENTS...: a part that only root can run
  local name=$1 why=$2
  shift 2
  if [ "$(id -u)" = 0 ]; then
    part "$name" "$@"
  else
    echo "$name: not measured: $why needs root"
    printf '%s\tnot measured (no root)\t-\t\n' "$name" >>"$results"
  fi
}

part agent 200 --bin bin --for "$watch"
root probe 'loading the programs in turns' 240 --rounds "$rounds" --round "$round"
part ingest 200 --bin bin --for "$load"
part calls 300 --bin bin --for "$questions" -n "$nodes"
part connector 200 --bin bin --for "$mixed" --slices "$slices"
part tasks 300 --bin bin --calls "$calls" --n "$waiting"
root events 'the probe' 200 --bin bin --crashes "$crashes" --storm "$storm"
root trace 'loading the programs' 300 --rounds "$beside" --round "$third"

LC_ALL=C awk -F'\t' '
  function pad(text, width,  t) { # by characters, not bytes, whatever the awk
    t = text; gsub(/[\200-\277]/, "", t)
    while (length(t) < width) { text = text " "; t = t " " }
    return text
  }
  function row(a, b, c, d) { print pad(a, 54) " | " pad(b, 24) " | " pad(c, 9) " | " d }
  BEGIN { row("measure", "result", "target", "met?"); rule = sprintf("%104s", ""); gsub(/ /, "-", rule); print rule }
  { row($1, $2, $3, $4) }' "$results"
echo "load at the end: $(cut -d' ' -f1-3 /proc/loadavg)"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
