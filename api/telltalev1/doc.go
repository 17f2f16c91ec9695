// Package telltalev1 is the wire between agents and the server, generated
// from api/proto/telltale/v1/agent.proto and never edited. The meaning of
// every message is written there. It knows no product code; both
// api/ingest and agent/uplink translate between it and their own words.
package telltalev1

//go:generate ../proto/generate.sh
