package metrics

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

const (
	// behind is how far a node's newest window may lie before the end of the
	// span: a window's length, and the time that one takes to arrive and to be
	// written.
	behind      = 3 * tenants.WindowLength
	maxOffNotes = 8 // nodes of which a Summary's notes say that something is off
)

// reach is how far the windows of one answering node go.
type reach struct {
	t  *target
	ts time.Time // of its newest window
}

// offState says that a module or signals of it are off on a node.
type offState struct {
	whole   bool // the module; else some signals
	since   time.Time
	why     string // by whom, or the reason in the node's report; untrusted, clean
	signals string
}

// sqlOffSince says where a component or signals of it are off, since when and
// why. A switch on the server comes first: the node's report only follows it.
const sqlOffSince = `
select distinct on (node_id) node_id, whole, since, why, signals from (
select node_id, true as whole, at as since, 'switched off from the server by ' || by as why, '' as signals, 0 as i
  from module_switch where tenant_id = $1 and node_id = any($2::uuid[]) and module = $3 and off
union all
select node_id, bool_and(level = 'off'), max(since) filter (where level = 'off'), coalesce(min(reason) filter (where level = 'off'), ''),
       coalesce(string_agg(signal, ', ' order by signal) filter (where level = 'off'), ''), 1
  from capability where tenant_id = $1 and node_id = any($2::uuid[]) and component = $3 group by node_id having bool_or(level = 'off')) x
 order by node_id, i`

func (s *Service) offSince(ctx context.Context, scope tenants.Scope, targets []target, component string) (off map[tenants.NodeID]offState, err error) {
	b := &pgx.Batch{}
	b.Queue(sqlOffSince, uid(scope.Tenant), idsOf(targets), component).Query(func(rows pgx.Rows) (err error) {
		off, err = readOff(rows)
		return err
	})
	return off, s.db.Read(ctx, scope.Tenant, b)
}

func readOff(rows pgx.Rows) (map[tenants.NodeID]offState, error) {
	out := map[tenants.NodeID]offState{}
	var id tenants.NodeID
	var o offState
	_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&id), &o.whole, &o.since, &o.why, &o.signals}, func() error {
		o.why, o.signals = inspector.CleanText(o.why), inspector.CleanText(o.signals)
		out[id] = o
		return nil
	})
	return out, err
}

// ended says of each node whose numbers do not go on to the end of the span
// why: what was switched off gives no number of now. A node whose module is off
// and whose windows end before the span does is not covered, whatever it sent
// earlier in it.
func ended(o *Summary, sum *summing, off map[tenants.NodeID]offState) {
	var notes []string
	var worst time.Time // of those that are covered
	present := sum.now.Sub(o.Window.To) < edge
	for _, r := range sum.reached {
		end := moment(r.ts)
		x, isOff := off[r.t.id]
		late := o.Window.To.Sub(r.ts) > behind
		switch {
		case isOff && x.since.Before(o.Window.To) && x.whole:
			if late {
				o.Coverage.Answered--
				o.Coverage.Miss(tenants.NotCovered{Node: r.t.id.String(), Name: r.t.name, Reason: "off"})
				r.ts = time.Time{}
			}
			notes = append(notes, fmt.Sprintf("%s; its numbers end at %s", x.text(o.Module, r.t), end))
		case isOff && x.since.Before(o.Window.To) && x.since.After(o.Window.From):
			notes = append(notes, x.text(o.Module, r.t)+"; the numbers that stand on them end then")
		case late && present:
			state := "online"
			if r.t.state != "no_data" {
				state = r.t.state
			}
			notes = append(notes, fmt.Sprintf("%s is %s; its numbers end at %s", r.t.name, state, end))
		}
		if !r.ts.IsZero() && (worst.IsZero() || r.ts.Before(worst)) {
			worst = r.ts
		}
	}
	if !worst.IsZero() {
		o.FreshnessS = age(sum.now, worst)
	}
	for _, t := range sum.silent {
		if x, ok := off[t.id]; ok && x.whole {
			notes = append(notes, x.text(o.Module, t)+"; it sent no numbers within the span")
		}
	}
	if n := len(notes) - maxOffNotes; n > 0 {
		notes = append(notes[:maxOffNotes], fmt.Sprintf("%d further nodes have it off, or sent no numbers up to the end of the span", n))
	}
	o.Notes = append(notes, o.Notes...)
}

func (x offState) text(module string, t *target) string {
	what := "module " + module + " is off"
	if !x.whole {
		list := strings.Split(x.signals, ", ")
		what = fmt.Sprintf("of module %s the signals %s are off", module, x.signals)
		if len(list) == 1 {
			what = fmt.Sprintf("of module %s the signal %s is off", module, x.signals)
		}
	}
	text := fmt.Sprintf("%s on %s since %s", what, t.name, moment(x.since))
	if x.why != "" {
		text += " (" + x.why + ")"
	}
	return text
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }
