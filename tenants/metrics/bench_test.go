package metrics

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// wide is a layout of n series, a tenth of them histograms and a fifth gauges.
func wide(component string, n int) (*inspector.Layout, []inspector.Value) {
	var ss []inspector.Series
	for i := range n {
		k := inspector.Delta
		if i%10 == 0 {
			k = inspector.Histogram
		} else if i%5 == 1 {
			k = inspector.Gauge
		}
		ss = append(ss, series(component+".m"+fmt.Sprint(int(k)), k, inspector.Count, "i", fmt.Sprintf("%04d", i)))
	}
	l := inspector.NewLayout(component, ss)
	vals := make([]inspector.Value, n)
	for i, s := range l.Series {
		switch s.Kind {
		case inspector.Gauge:
			vals[i] = gauge(float64(i))
		case inspector.Histogram:
			vals[i] = hist(1000, 1, 2, 3, 4, 5, 6)
		default:
			vals[i] = delta(uint64(i * 3))
		}
	}
	return l, vals
}

// BenchmarkWrite is the way in from Check to commit: full batches of 100
// series a window over 20 tenants, with row-level security and partitions.
func BenchmarkWrite(b *testing.B) {
	w := newWorld(b)
	ctx := context.Background()
	const nodesN = 500
	l, vals := wide("network", 100)
	packed := inspector.AppendValues(nil, l.Series, vals)
	var nodes []tenants.Scope
	for i := range nodesN {
		if i%25 == 0 {
			w.a = w.tenant(fmt.Sprintf("t%d", i/25))
		}
		n := w.node(w.a, fmt.Sprintf("n%d", i))
		w.layout(n, l)
		w.open(n)
		nodes = append(nodes, n)
	}
	seq := uint64(0)
	var check, write time.Duration
	own, theirs := w.cpu()
	for b.Loop() {
		seq++
		t0 := time.Now()
		batch := make([]Checked, 0, MaxBatch)
		end := w.now().Add(-5*time.Hour + time.Duration(seq)*tenants.WindowLength)
		for _, n := range nodes {
			c, err := w.s.Check(ctx, n, Report{Epoch: 1, Seq: seq, Layout: l.Hash, Start: end.Add(-tenants.WindowLength), End: end, Packed: packed, Samples: 100}, 0)
			if err != nil {
				b.Fatal(err)
			}
			batch = append(batch, c)
		}
		t1 := time.Now()
		if out := w.write(batch...); out[0].Status != Stored {
			b.Fatal(out[0])
		}
		check, write = check+t1.Sub(t0), write+time.Since(t1)
	}
	windows := float64(seq) * nodesN
	ownEnd, theirsEnd := w.cpu()
	b.ReportMetric(float64((ownEnd-own).Nanoseconds())/windows, "own-cpu-ns/window")
	b.ReportMetric(float64((theirsEnd-theirs).Nanoseconds())/windows, "db-cpu-ns/window")
	b.ReportMetric(windows/b.Elapsed().Seconds(), "windows/s")
	b.ReportMetric(windows*100/b.Elapsed().Seconds(), "samples/s")
	b.ReportMetric(float64(check.Nanoseconds())/windows, "check-ns/window")
	b.ReportMetric(float64(write.Nanoseconds())/windows, "write-ns/window")
	b.ReportMetric(float64(w.count(`select sum(pg_total_relation_size(i.inhrelid))::bigint from pg_inherits i where i.inhparent = 'win'::regclass`))/windows/100, "bytes/sample")
}

// cpu is the processor time used by this process and by the database's ingest
// connections: on a busy machine it says more than the clock does.
func (w *world) cpu() (own, theirs time.Duration) {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		w.t.Fatal(err)
	}
	own = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	rows, err := w.conn.Query(context.Background(), `select pid from pg_stat_activity where usename = 'telltale_ingest'`)
	if err != nil {
		w.t.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		w.t.Fatal(err)
	}
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			w.t.Fatal(err)
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // from the state on, proc(5)
		for _, ticks := range f[11:13] {
			n, _ := strconv.Atoi(ticks)
			theirs += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return own, theirs
}

// BenchmarkReads asks the questions of a dashboard about 200 nodes of 100
// series.
func BenchmarkReads(b *testing.B) {
	w := newWorld(b)
	ctx := context.Background()
	l, vals := wide("network", 100)
	packed := inspector.AppendValues(nil, l.Series, vals)
	for i := range 200 {
		n := w.node(w.a, fmt.Sprintf("n%03d", i))
		w.layout(n, l)
		w.open(n)
		var batch []Checked
		for k := range 30 {
			end := w.now().Add(-time.Duration(29-k) * tenants.WindowLength)
			c, err := w.s.Check(ctx, n, Report{Epoch: 1, Seq: uint64(k + 1), Layout: l.Hash, Start: end.Add(-tenants.WindowLength), End: end, Packed: packed}, 0)
			if err != nil {
				b.Fatal(err)
			}
			batch = append(batch, c)
		}
		w.write(batch...)
	}
	w.exec("analyze")
	all := reader(w.a, tenants.Selector{})
	one := fmt.Sprintf("network.m%d", int(inspector.Delta))
	for _, bm := range []struct {
		name string
		call func() error
	}{
		{"SummaryOneNode", func() error {
			_, err := w.s.Summary(ctx, all, SummaryQuery{Module: "network", Node: "n050"})
			return err
		}},
		{"SummaryFleet", func() error { _, err := w.s.Summary(ctx, all, SummaryQuery{Module: "network"}); return err }},
		{"QueryOneNode", func() error {
			_, err := w.s.Query(ctx, all, Query{Metrics: []string{one}, Node: "n050"})
			return err
		}},
		{"QueryTop", func() error {
			_, err := w.s.Query(ctx, all, Query{Metrics: []string{one}, Labels: map[string]string{"i": "0002"}, Top: 10})
			return err
		}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				t0 := time.Now()
				if err := bm.call(); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(t0))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
		})
	}
}

// BenchmarkTopNow asks for the greatest of 10,000 nodes.
func BenchmarkTopNow(b *testing.B) {
	w := newWorld(b)
	ctx := context.Background()
	w.exec(`insert into node (tenant_id, node_id, name, enrol_token, enrolled_at)
		select $1, gen_random_uuid(), 'host-' || i, 't', $2::timestamptz from generate_series(1, 10000) i`, uid(w.a), start)
	w.exec(`insert into node_head (tenant_id, node_id, epoch, seq, last_ts, head_set, vals)
		select tenant_id, node_id, 1, 5, $2, $3, array[random(), random()] from node where tenant_id = $1`, uid(w.a), w.now(), w.s.heads.set)
	for i := range 10 {
		w.fill(w.node(w.a, fmt.Sprintf("hot%d", i)), 30, uint64(1000+i))
	}
	w.exec("analyze")
	all := reader(w.a, tenants.Selector{})
	var took []time.Duration
	for b.Loop() {
		t0 := time.Now()
		r, err := w.s.Query(ctx, all, Query{Metrics: []string{"network.opens"}, Top: 10, By: ByLast})
		if err != nil || len(r.Series) != 10 {
			b.Fatal(len(r.Series), err)
		}
		took = append(took, time.Since(t0))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
}
