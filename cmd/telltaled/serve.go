package main

import (
	"context"
	"flag"

	"github.com/telltale-dev/telltale/migrations"
)

func serve(ctx context.Context, e env, args []string) error {
	var cfg config
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	cfg.flags(fs)
	if err := load(fs, e, args); err != nil {
		return err
	}
	if err := cfg.check(); err != nil {
		return err
	}
	log := newLogger(e.stderr, cfg.logLevel, cfg.logForm)
	logEffective(log, fs)
	if cfg.migrate {
		if err := migrations.Apply(ctx, cfg.db.ownerDSN(), log); err != nil {
			return err
		}
	}
	a, err := build(ctx, &cfg, log)
	if err != nil {
		return err
	}
	return runParts(ctx, log, a.parts)
}
