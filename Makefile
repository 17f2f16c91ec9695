# Telltale. `make help` lists the targets.
SHELL := /bin/bash
export PATH := $(CURDIR)/deploy/node/bin:$(PATH):/usr/sbin:/sbin
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
BINARIES := bin/telltaled bin/telltale-agent bin/telltale

.PHONY: help deps up demo-data build web test test-go test-web test-idp lint generate check-generated bench clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install what building and running need (a no-op when present)
	@deploy/deps.sh run

# The first scopes: each demo account sees its own tools at once, without a step-up.
up: build ## start everything on this machine: database, server, two tenants, an agent with the real probe
	@exec bin/telltaled dev --first-scopes read,diagnose,admin

demo-data: build ## start everything with a synthetic fleet of 300 nodes beside the local agent, to try the dashboard
	@exec bin/telltaled dev --first-scopes read,diagnose,admin --agents 301

build: deps web ## build bin/telltaled, bin/telltale-agent and bin/telltale
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/telltaled ./cmd/telltale-agent ./cmd/telltale

web: web/dist/index.html ## build the dashboard into web/dist, to be embedded

web/dist/index.html: $(shell find web/src web/public web/index.html web/package.json web/package-lock.json web/vite.config.ts -type f 2>/dev/null) api/rest/openapi.yaml
	cd web && npm run --silent build

test: ## the whole test suite, after installing what it needs
	@deploy/deps.sh test
	@$(MAKE) --no-print-directory build check-generated lint test-go test-web test-idp

test-go: ## unit, integration, kernel and end-to-end tests with the race detector
	@if [ $$(id -u) != 0 ]; then printf '%s\n' \
	  'Not root, so this run skips what the kernel allows to root alone:' \
	  '  programs loaded and stimulated   agent/bpfload, agent/inspector/{network,storage,process}/probe, agent/collectors' \
	  '  a mount that never answers       agent/inspector/host/collect' \
	  '  every signal from bpf, end to end   cmd/e2e' \
	  'The fallbacks to /proc are tested all the same. Each skipped test names its reason: go test -v ./agent/... | grep -A1 SKIP'; fi
	$(GO) test -race -timeout 20m ./...

test-web: ## the dashboard's unit tests and its test in a real browser
	cd web && npm run --silent test && npm run --silent e2e

test-idp: ## the demo identity provider's flows
	cd deploy/devidp && npm run --silent test

lint: ## gofmt, go vet, staticcheck, TypeScript
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofmt'd: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	cd web && npm run --silent lint

generate: ## write the generated files anew: protobuf, BPF objects, the dashboard's API types
	@deploy/deps.sh test
	$(GO) generate ./...
	cd web && npm run --silent generate

check-generated: ## fail when a generated file is not current
	@deploy/check-generated.sh

bench: build ## measure speed, size and overhead against the stated targets
	@deploy/deps.sh test
	@bench/run.sh

clean: ## remove what was built (never the data in .telltale/)
	rm -rf bin web/dist/assets web/dist/index.html
