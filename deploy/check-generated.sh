#!/usr/bin/env bash
# Fails when a committed generated file differs from what its source makes
# now, and leaves the tree as it found it.
set -euo pipefail
cd "$(dirname "$0")/.."
list() { git ls-files -co --exclude-standard '*.pb.go' '*_bpfel.go' '*_bpfel.o' 'web/src/api/schema.d.ts'; }
before=$(mktemp) after=$(mktemp)
trap 'rm -f "$before" "$after"' EXIT
list | xargs -r sha256sum >"$before"
make --no-print-directory -s generate >/dev/null
list | xargs -r sha256sum >"$after"
if ! diff -u "$before" "$after"; then
  echo "generated files are not current: run 'make generate' and commit the result" >&2
  exit 1
fi
echo "generated files are current"
