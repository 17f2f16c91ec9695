package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/telltale-dev/telltale/migrations"
)

func migrate(ctx context.Context, e env, args []string) error {
	var d database
	fs := flag.NewFlagSet("migrate", flag.ContinueOnError)
	d.flags(fs)
	d.ownerFlag(fs)
	if err := load(fs, e, args); err != nil {
		return err
	}
	if d.ownerDSN() == "" {
		return fmt.Errorf("%w: %w", errUsage, d.check())
	}
	if err := migrations.Apply(ctx, d.ownerDSN(), newLogger(e.stderr, "info", "text")); err != nil {
		return err
	}
	version, err := migrations.Latest()
	if err == nil {
		fmt.Fprintf(e.stdout, "the schema is current (version %d)\n", version)
	}
	return err
}
