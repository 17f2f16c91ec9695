package main

import (
	"context"
	"fmt"
	"strings"
)

// validate checks one thing after the other and reports what it finds.
func validate(ctx context.Context, e env, f *flags) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w := newWire()
	defer w.close()
	ep, err := endpointOf(e, f, w)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(e.err, "telltale mcp: "+format+"\n", args...) }
	say("%s is a tenant's URL", ep.url)
	if _, err := ep.cred.token(ctx); err != nil {
		return err
	}
	say("trying %s", ep.cred.words())
	var versions []string
	tools := 0
	for _, v := range []string{"", "2025-11-25"} {
		s, err := connect(ctx, ep, w, v)
		if err != nil {
			return err
		}
		versions = append(versions, s.InitializeResult().ProtocolVersion)
		tools, err = s.countTools(ctx)
		s.Close()
		if err != nil {
			return err
		}
	}
	say("%s answers and takes it; protocol %s; %d tools", ep.url, strings.Join(versions, " and "), tools)
	if tools == 0 {
		say("no tool may be used; the credential needs telltale:read at least")
		return errReported
	}
	return nil
}
