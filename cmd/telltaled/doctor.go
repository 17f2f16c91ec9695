package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/auth"
)

// finding is one thing doctor looked at. mend is empty when all is well.
type finding struct{ what, state, mend string }

var errUnwell = errors.New("something is wrong: see above")

// doctorHint is for who has no installed server yet.
const doctorHint = "\ndoctor looks at the settings of an installed server: name its file with --config. 'telltaled dev' needs none of them."

// doctor looks at everything serve needs and says how to mend what is wrong.
// It changes nothing.
func doctor(ctx context.Context, e env, args []string) error {
	var cfg config
	fs := flag.NewFlagSet("doctor", flag.ContinueOnError)
	cfg.flags(fs)
	if err := load(fs, e, args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	log := newLogger(e.stderr, "error", "text")
	list := []finding{settingsFinding(&cfg)}
	list = append(list, databaseFindings(ctx, &cfg.db, log)...)
	list = append(list, certFinding("certificate for people", cfg.tlsCert, cfg.tlsKey, log), certFinding("certificate for agents", cfg.grpcCert, cfg.grpcKey, log), keyFinding(cfg.keyFile))

	well := true
	err := table(e.stdout, "CHECK\tSTATE", func(row func(...any)) error {
		for _, f := range list {
			row(f.what, f.state)
			well = well && f.mend == ""
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, f := range list {
		if f.mend != "" {
			fmt.Fprintf(e.stdout, "\n%s: %s\n", f.what, f.mend)
		}
	}
	if !well {
		fmt.Fprintln(e.stdout, doctorHint)
		return errUnwell
	}
	return nil
}

func settingsFinding(cfg *config) finding {
	if err := cfg.check(); err != nil {
		return finding{"settings", "wrong", err.Error()}
	}
	return finding{"settings", "ok", ""}
}

func databaseFindings(ctx context.Context, d *database, log *slog.Logger) []finding {
	if d.check() != nil {
		return []finding{{"database", "not named", "give --database"}}
	}
	adm, err := d.open(ctx, log)
	if err != nil {
		return []finding{{"database", "away", explain(err)}}
	}
	defer adm.db.Close()
	out := []finding{{"database", "ok", ""}, {"schema", "ok", ""}}
	if err := adm.schemaCurrent(ctx); err != nil {
		out[1] = finding{"schema", "behind", explain(err)}
	}
	var theirs time.Time
	before := time.Now()
	err = adm.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&theirs)
	})
	took := time.Since(before)
	if err != nil {
		return append(out, finding{"clock", "unknown", explain(err)})
	}
	skew := theirs.Sub(before.Add(took / 2))
	if skew.Abs() > time.Second+took {
		return append(out, finding{"clock", fmt.Sprintf("%s apart from the database's", skew.Round(time.Millisecond)), "set both machines' clocks by NTP: leases and windows compare times"})
	}
	return append(out, finding{"clock", fmt.Sprintf("ok (%.1f ms from the database's, within ±%.1f ms)", skew.Seconds()*1e3, took.Seconds()*1e3), ""})
}

func certFinding(what, certFile, keyFile string, log *slog.Logger) finding {
	if certFile == "" {
		return finding{what, "not set", ""}
	}
	served, err := auth.NewServerCert(certFile, keyFile, log)
	if err != nil {
		return finding{what, "unusable", err.Error()}
	}
	cert := served.Leaf()
	left := time.Until(cert.NotAfter)
	state := fmt.Sprintf("ok, %.0f days left, for %v %v", left.Hours()/24, cert.DNSNames, cert.IPAddresses)
	switch {
	case left < 0:
		return finding{what, "expired", "replace " + certFile + "; the server reads it again without a restart"}
	case left < 14*24*time.Hour:
		return finding{what, state, "renew " + certFile + " soon; the server reads it again without a restart"}
	}
	return finding{what, state, ""}
}

func keyFinding(file string) finding {
	if file == "" {
		return finding{"sealing key", "not set", "give --key-file"}
	}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return finding{"sealing key", "absent: serve makes it", ""}
	}
	if _, err := auth.LoadOrCreateKey(file); err != nil {
		return finding{"sealing key", "unusable", err.Error()}
	}
	return finding{"sealing key", "ok", ""}
}
