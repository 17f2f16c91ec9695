package tasks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// machine is a node with an agent as it should be: it runs what it is told
// once, keeps an end until it is taken, and loses all of it with its life.
type machine struct {
	*node
	life    int64
	ch      *Channel
	running map[ID]bool // true: ended, not yet taken
	got     map[ID]int  // requests that ever came, over all lives
}

// chaos is one random history of two replicas and two nodes.
type chaos struct {
	*world
	r        *rand.Rand
	services []*Service
	machines []*machine
	started  int
}

func (c *chaos) service() *Service { return c.services[c.r.IntN(len(c.services))] }

// listen takes what reached the machine; a machine without a channel loses it.
func (c *chaos) listen(m *machine) {
	ctx := context.Background()
	for len(m.orders) > 0 {
		d := <-m.orders
		m.got[d.ID]++
		if m.got[d.ID] > 1 {
			c.t.Fatalf("%s was dispatched twice", d.ID)
		}
		if m.ch == nil || c.r.IntN(8) == 0 {
			continue // lost on the way
		}
		if !c.now().Before(d.StartBefore) {
			c.must(m.ch.Rejected(ctx, d.ID, inspector.Refusal{Kind: "DEADLINE_EXCEEDED", Reason: inspector.ReasonLate}))
			continue
		}
		m.running[d.ID] = false
		c.must(m.ch.Accepted(ctx, d.ID))
	}
	for len(m.stops) > 0 {
		id := <-m.stops
		if over, has := m.running[id]; has && !over && m.ch != nil && c.r.IntN(4) > 0 {
			c.finish(m, id, Outcome{State: Cancelled, Result: result(1)})
		}
	}
}

func (c *chaos) finish(m *machine, id ID, o Outcome) {
	m.running[id] = true
	if m.ch != nil {
		c.must(m.ch.Finished(context.Background(), id, o))
		delete(m.running, id)
	}
}

func (c *chaos) connect(m *machine) {
	var running []ID
	for id := range m.running {
		running = append(running, id)
	}
	ch, cancel := m.open(c.service(), m.life, running...)
	m.ch = ch
	for _, id := range cancel {
		delete(m.running, id)
	}
	for id, over := range m.running {
		if over {
			c.finish(m, id, done(1))
		}
	}
}

func (c *chaos) step() {
	ctx := context.Background()
	m := c.machines[c.r.IntN(len(c.machines))]
	switch c.r.IntN(14) {
	case 0, 1:
		req := drops(m.target.Name, 1+c.r.IntN(20))
		if c.r.IntN(4) == 0 {
			req = Request{Kind: "trace_drops", Labels: map[string]string{"set": "m"}, Args: req.Args}
		}
		c.began(c.service(), c.me(), req)
		c.started++
	case 2, 3, 4:
		c.listen(m)
	case 5:
		for id, over := range m.running {
			if !over && c.r.IntN(2) == 0 {
				c.finish(m, id, done(2))
			}
		}
	case 6:
		for id, over := range m.running {
			if !over && m.ch != nil {
				c.must(m.ch.Progress(ctx, id, Progress{Permille: uint32(c.r.IntN(1000)), Partial: result(1)}))
			}
		}
	case 7: // the connection breaks, or is handed over; the server may notice late or never
		old := m.ch
		m.ch = nil
		if old != nil && c.r.IntN(5) > 0 {
			old.Closed(ctx, c.r.IntN(3) == 0)
		}
	case 8:
		if m.ch == nil {
			c.connect(m)
		}
	case 9:
		if c.r.IntN(3) == 0 { // the agent is started anew
			m.life++
			m.running, m.ch = map[ID]bool{}, nil
			c.connect(m)
		}
	case 10:
		if p, err := c.service().List(ctx, c.me(), ListQuery{Active: true}); err == nil && len(p.Tasks) > 0 {
			id, err := ParseID(p.Tasks[c.r.IntN(len(p.Tasks))].Ticket)
			c.must(err)
			c.must(c.service().cancelRuns(ctx, taskKey{c.a, id}, nil))
		}
	case 11:
		c.advance(time.Duration(c.r.IntN(4000)) * time.Millisecond)
	default:
		s := c.service()
		c.must(s.lookForClaims(ctx))
		c.must(s.claim(ctx))
		c.must(s.write(ctx))
		c.must(s.renew(ctx))
	}
	if c.r.IntN(3) == 0 {
		c.must(c.service().Sweep(ctx))
		c.invariant("after a sweep")
	}
}

// invariant asks the database for what must never be.
func (c *chaos) invariant(when string) {
	c.t.Helper()
	for what, sql := range map[string]string{
		"active beyond its deadline and grace": `select count(*) from task_run where ended_at is null and deadline_at + $2::interval <= $1`,
		"waiting beyond its start":             `select count(*) from task_run where state = 'CREATED' and start_before <= $1 and $2::interval is not null`,
		"state and end disagree": `select count(*) from task_run
			where (state in ('CREATED', 'DISPATCHED', 'RUNNING')) <> (ended_at is null) and $1::timestamptz is not null and $2::interval is not null`,
		"task and runs disagree": `select count(*) from task t where $1::timestamptz is not null and $2::interval is not null
			and (t.ended_at is null) <> exists (select from task_run r where r.task_id = t.task_id and r.ended_at is null)`,
		"a result beside a run that never had one": `select count(*) from task_result x join task_run r using (tenant_id, task_id, node_id)
			where $1::timestamptz is not null and $2::interval is not null and x.partial = (r.state = 'COMPLETED')`,
	} {
		var n int
		if err := c.conn.QueryRow(context.Background(), sql, c.now(), DeadlineGrace).Scan(&n); err != nil || n != 0 {
			c.t.Fatalf("%s: %d runs %s (%v)", when, n, what, err)
		}
	}
}

// Whatever happens in whatever order: nothing is dispatched twice, and
// everything ends by its deadline and grace.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := &chaos{world: w, r: rand.New(rand.NewPCG(seed, 3)), services: []*Service{w.s, w.s2}}
			for i := range 2 {
				n := w.node(w.a, fmt.Sprintf("m%d", i), map[string]string{"set": "m"})
				m := &machine{node: n, life: 1, running: map[ID]bool{}, got: map[ID]int{}}
				c.machines = append(c.machines, m)
				c.connect(m)
			}
			for range 150 {
				c.step()
			}
			w.advance(MaxRuns * time.Second)
			c.must(w.s2.Sweep(t.Context()))
			c.invariant("at the end")
			p, err := w.s.List(t.Context(), w.me(), ListQuery{Active: true})
			if err != nil || len(p.Tasks) != 0 {
				t.Errorf("%d tasks are still active (%v)", len(p.Tasks), err)
			}
			if c.started == 0 {
				t.Error("nothing was started")
			}
		})
	}
}
