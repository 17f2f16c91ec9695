#!/bin/sh
# Generates api/telltalev1 from api/proto. Needs Debian's protobuf-compiler;
# the two plugins are Go tools of this module.
set -eu
cd "$(dirname "$0")/../.."
protoc --proto_path=api/proto \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--plugin=protoc-gen-go-grpc="$(go tool -n protoc-gen-go-grpc)" \
	--go_out=. --go_opt=module=github.com/telltale-dev/telltale \
	--go-grpc_out=. --go-grpc_opt=module=github.com/telltale-dev/telltale \
	api/proto/telltale/v1/agent.proto
