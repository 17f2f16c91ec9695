#!/usr/bin/env bash
# Installs what is missing on a Debian or Ubuntu machine, and nothing else:
#   deploy/deps.sh run    what `make up` and `make build` need
#   deploy/deps.sh test   that, and what `make test` needs
# A second run finds everything present, changes nothing and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-run}

missing=()
need() { # need PACKAGE COMMAND: the package, unless the command is there
  command -v "$2" >/dev/null 2>&1 || PATH=$PATH:/usr/sbin:/sbin command -v "$2" >/dev/null 2>&1 || missing+=("$1")
}

compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
[ -n "$(type -Pa npm | grep -vF "$PWD/deploy/node/bin/")" ] || missing+=(npm)
if [ "$what" = test ]; then
  need gcc gcc                         # the race detector needs cgo
  [ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
  need clang-14 clang-14
  need llvm-14 llvm-strip-14
  need protobuf-compiler protoc
  [ -e /usr/include/bpf/bpf_helpers.h ] || missing+=(libbpf-dev)
  [ -e /usr/include/linux/bpf.h ] || missing+=(linux-libc-dev)
  [ -e /usr/include/google/protobuf/timestamp.proto ] || missing+=(libprotobuf-dev)
  need iproute2 ip
  need nftables nft
  need util-linux setpriv
  need mount losetup
  need procps pgrep
  need bpftrace bpftrace               # peers that the tests count beside
  need libbpf-tools biolatency
  need chromium chromium
  need git git
fi

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ]; then sudo=(); elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo=(sudo); else
    echo "missing packages; run this once, then try again:" >&2
    echo "  sudo mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' | sudo tee -a /etc/postgresql-common/createcluster.conf && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${sudo[@]}" apt-get update -qq
  if printf '%s\n' "${missing[@]}" | grep -qx postgresql; then
    # The server binaries only: no cluster of the system's own may start.
    "${sudo[@]}" mkdir -p /etc/postgresql-common
    grep -qs '^create_main_cluster = false' /etc/postgresql-common/createcluster.conf ||
      echo 'create_main_cluster = false' | "${sudo[@]}" tee -a /etc/postgresql-common/createcluster.conf >/dev/null
  fi
  "${sudo[@]}" apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold "${missing[@]}" >/dev/null
fi

if ! command -v go >/dev/null 2>&1; then
  echo "Go is missing: install Go 1.26 or newer and put it on PATH" >&2
  exit 1
fi
go mod download

# npm_ci DIR: the packages of DIR's lock file, unless they are already there.
npm_ci() {
  local want
  want=$(sha256sum "$1/package-lock.json" | cut -d' ' -f1)
  [ "$(cat "$1/node_modules/.installed" 2>/dev/null)" = "$want" ] && return
  echo "installing Node packages of $1"
  (cd "$1" && npm ci --no-audit --no-fund --loglevel=error)
  echo "$want" >"$1/node_modules/.installed"
}

# Any npm bootstraps the pinned one; from then on only the pinned one is used.
pinned=$PWD/deploy/node/bin
PATH=$(printf %s "$PATH" | tr : '\n' | grep -vxF "$pinned" | paste -sd:) npm_ci deploy/node
export PATH="$pinned:$PATH"
if [ -e web/package-lock.json ]; then npm_ci web; fi
if [ "$what" = test ]; then
  npm_ci deploy/clients # the official conformance suites and real clients
fi
npm_ci deploy/devidp
