package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// DoOptions tune one call of Do.
type DoOptions struct {
	CancelWhenAbandoned bool       // cancel the task when ctx ends before Do has answered
	Progress            func(Task) // called now and then while Do waits, with what is known so far; nil: not wanted
}

// queryTime is how long a task without a duration of its own may take.
const queryTime = 5 * time.Second

// Do starts a task and waits for it: to its end when its duration is at most
// ShortTask, else until every node has answered; the ticket fetches the rest.
// It returns at once, with the task and its ticket, when the node's connection
// is lost meanwhile: the run is active then, with the reason
// node_connection_lost and a lease.
//
// A single node that is away, refuses or has the feature off is an error; what
// happens after it began is in the task. A fan-out is always a task, with what
// each node said inside. When ctx ends first, the error is a Deadline and the
// task is returned as far as it is known.
//
// It needs the scope that the kind of task names.
func (s *Service) Do(ctx context.Context, scope tenants.Scope, req Request, opts DoOptions) (Task, error) {
	var p *plan
	var moved <-chan struct{}
	var err error
	stop := func() {}
	defer func() { stop() }()
	aside(func() {
		if p, err = s.plan(scope, req); err != nil {
			return
		}
		p.untold = p.duration <= ShortTask && opts.Progress == nil && !p.fanout()
		moved, stop = s.watches.add(p.key, p.duration <= ShortTask && opts.Progress == nil)
		if !p.fanout() && scope.Nodes.All() {
			s.watches.want(p.key)
		}
		// A caller who goes away now is no reason not to know whether it is stored.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if err = s.begin(bounded, p); err == nil {
			s.counts.add(&s.counts.started)
			s.send(bounded, p)
		}
	})
	if err != nil {
		s.counts.add(&s.counts.refused)
		return Task{}, err
	}
	return s.await(ctx, scope, p, moved, opts)
}

// plan is a checked request.
type plan struct {
	key      taskKey
	kind     inspector.TaskKind
	args     []byte
	scope    tenants.Scope
	node     string            // as the caller named it; empty: by labels
	labels   map[string]string // nil: one node
	duration time.Duration
	created  time.Time
	runs     []target
	skipped  []tenants.NotCovered
	untold   bool // its caller is not to hear of it before its end
}

// target is a node that gets a run.
type target struct {
	tenants.Target
	channel *Channel // nil: another replica holds it
}

func (p *plan) fanout() bool           { return p.labels != nil }
func (p *plan) startBefore() time.Time { return p.created.Add(StartWithin) }
func (p *plan) deadline() time.Time    { return p.startBefore().Add(p.duration + RunGrace) }

// plan checks what can be checked without looking for the nodes.
func (s *Service) plan(scope tenants.Scope, req Request) (*plan, error) {
	kind, ok := s.reg.Task(req.Kind)
	if !ok {
		return nil, s.unknownKind(req.Kind)
	}
	if err := scope.Require(needs(kind)); err != nil {
		return nil, err
	}
	args, err := kind.Check(req.Args)
	if err != nil {
		return nil, badArgument(kind, err)
	}
	if (req.Node == "") == (len(req.Labels) == 0) {
		return nil, fault.Bad("node", "give either a node or a selector").Do("name one node by id or name, or give a selector of labels")
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	p := &plan{key: taskKey{scope.Tenant, ID(uuid.Must(uuid.NewV7()))}, kind: kind, args: raw, scope: scope, node: req.Node, duration: queryTime}
	if args.Has(inspector.ArgDuration) {
		p.duration = time.Duration(args.Int(inspector.ArgDuration)) * time.Second
	}
	if req.Node == "" {
		p.labels = req.Labels
	}
	return p, nil
}

// query looks for the nodes that a plan is meant for.
func (p *plan) query() tenants.TargetQuery {
	return tenants.TargetQuery{Node: p.node, Labels: p.labels, Component: p.kind.Component, Signals: p.kind.Signals, Limit: MaxRuns + 1}
}

// begin finds the nodes and stores the task: in one round trip for a node
// whose channel is here, when it is the one that its name meant before and
// nothing stands against it.
func (s *Service) begin(ctx context.Context, p *plan) error {
	if t, ok := s.guess(p.key.tenant, p.node); ok {
		p.runs, p.created = []target{t}, s.clock()
		if stored, err := s.storeFound(ctx, p); stored || err != nil {
			return err
		}
		p.runs = nil
	}
	found, err := s.nodes.Targets(ctx, p.scope, p.query())
	if err != nil {
		return err
	}
	if err := p.take(s, found); err != nil {
		return err
	}
	p.created = s.clock()
	if err := s.store(ctx, p); err != nil {
		return err
	}
	if c := p.runs; !p.fanout() && c[0].channel != nil {
		s.named(c[0].channel, c[0].Name)
	}
	return nil
}

// take sorts the nodes into those that get a run and those that do not.
func (p *plan) take(s *Service, found []tenants.Target) error {
	switch {
	case len(found) == 0:
		return fault.New(fault.NotFound, "no_nodes", "no node bears these labels").Do("list the nodes to see their labels")
	case p.fanout() && len(found) > MaxRuns:
		n := max(len(found), found[0].Matched)
		e := fault.Newf(fault.Invalid, "too_many_nodes", "the selector matches %d nodes; a task runs on at most %d", n, MaxRuns).
			Do("add a label to the selector to narrow it, or name one node")
		e.Field = "selector"
		return e
	}
	for _, t := range found {
		why := refuse(t)
		switch {
		case why == nil:
			p.runs = append(p.runs, target{t, s.channel(nodeKey{p.key.tenant, t.Node})})
		case !p.fanout():
			return why
		default:
			reason := t.Status
			if t.Status == statusOnline {
				reason = clip(inspector.ReasonFeatureOff+": "+t.Off, 200)
			}
			p.skipped = append(p.skipped, tenants.NotCovered{Node: t.Node.String(), Name: t.Name, Reason: reason})
		}
	}
	return nil
}

const statusOnline = "online"

// refuse says why a node can take no task now; nil: it can.
func refuse(t tenants.Target) error {
	if t.Status == statusOnline {
		if t.Off == "" {
			return nil
		}
		return fault.Newf(fault.Precondition, inspector.ReasonFeatureOff, "what this task needs is off on %s: %s", t.Name, t.Off).
			Do("call get_node to see what is off there and why; choose another node or another task")
	}
	msg, do := "is not connected", "look at the node's status with get_node and try again when it is online"
	switch t.Status {
	case "stale":
		msg = "has been silent for a while"
	case "never":
		msg = "has never connected"
	case "quarantined":
		msg, do = "has a clock that is more than an hour off", "set the node's clock and try again"
	case "duplicate":
		msg, do = "is one identity that is live on two machines", "enrol one of them anew"
	case "revoked":
		msg, do = "is revoked", "enrol the machine anew"
	}
	return fault.Newf(fault.Unavailable, "node_"+t.Status, "%s %s", t.Name, msg).Do(do)
}

// needs is what a caller must hold for a kind of task; nothing fits a kind
// whose word is unknown.
func needs(k inspector.TaskKind) tenants.Scopes {
	want, _ := tenants.ParseScopes([]string{string(k.Scope)})
	return want
}

func (s *Service) unknownKind(name string) error {
	var names []string
	for _, c := range s.reg.Components() {
		for _, k := range c.Tasks {
			names = append(names, k.Name)
		}
	}
	slices.Sort(names)
	e := fault.Newf(fault.Invalid, inspector.ReasonUnknownKind, "no task %.60q", clip(name, 60)).Do("use one of " + strings.Join(names, ", "))
	e.Field = "kind"
	return e
}

func badArgument(k inspector.TaskKind, err error) error {
	var bad *inspector.ArgError
	if !errors.As(err, &bad) {
		return err
	}
	e := &fault.Error{Kind: fault.Invalid, Reason: bad.Reason, Field: bad.Arg, Msg: bad.Msg, Next: "correct the argument and start the task again"}
	if bad.Reason == "no_target" {
		e.Next = "give a target, so that the task looks at no more than it must"
		if k.Aim != "" {
			e.Next = k.Aim
		}
	}
	return e
}

// storeFound is store for one node, which the database looks for beside it:
// stored is false when it finds another one, or none that can take the task, and
// when the place tried is taken.
func (s *Service) storeFound(ctx context.Context, p *plan) (stored bool, err error) {
	args, err := p.row(s.replica)
	if err != nil {
		return false, err
	}
	b := &pgx.Batch{}
	if err := s.nodes.QueueTarget(b, p.scope, p.query()); err != nil {
		return false, err
	}
	b.Queue(sqlStartFound, append(args, p.runs[0].Key())...).Exec(func(tag pgconn.CommandTag) error { stored = tag.RowsAffected() > 0; return nil })
	err = s.put(ctx, p, b)
	return stored && err == nil, err
}

// store writes the task and its runs. Those whose node's channel is here are
// DISPATCHED at once; the commit is the promise that they are sent only once.
func (s *Service) store(ctx context.Context, p *plan) error {
	args, err := p.row(s.replica)
	if err != nil {
		return err
	}
	insert := sqlStart
	if len(p.runs) == 0 {
		insert = sqlInsertEnded
	}
	for {
		stored, active := false, 0
		b := &pgx.Batch{}
		b.Queue(insert, args...).Exec(func(tag pgconn.CommandTag) error { stored = tag.RowsAffected() > 0; return nil })
		err := s.put(ctx, p, b)
		if err == nil && !stored && insert == sqlStart {
			insert, args[4] = sqlStartFree, MaxActive
			continue
		}
		if err == nil && !stored {
			active, _, err = tenantdb.QueryOne(ctx, s.db, p.key.tenant, sqlCountActive, args[:1], pgx.RowTo[int])
		}
		switch {
		case err != nil:
			return err
		case stored:
			return nil
		case active >= MaxActive:
			return fault.Newf(fault.Exhausted, "too_many_tasks", "%d tasks of this tenant are active, which is the limit", MaxActive).
				Do("wait until one ends, or cancel one; list the active tasks to see them")
		}
		// Another start took the same place at the same moment: take another
		// one, for as long as ctx lasts.
	}
}

// put writes a start. That of a task of one node whose caller waits for its end
// need not be on disk before the node begins: were it lost with the database, the
// task would not be sent again, its end be refused as unknown, and its caller
// hear task_lost. Its end is on disk before the node forgets it. Who hears of the
// ticket sooner, from a list or because he goes away or the node is lost at once,
// has what a crash within that moment (see WriteSoon) undoes.
func (s *Service) put(ctx context.Context, p *plan, b *pgx.Batch) error {
	if p.untold {
		return s.db.WriteSoon(ctx, p.key.tenant, b)
	}
	return s.db.Write(ctx, p.key.tenant, b)
}

// row are the parameters of sqlStart, or of sqlInsertEnded without any run.
func (p *plan) row(replica string) ([]any, error) {
	var labels []byte
	if p.fanout() {
		b, err := json.Marshal(p.labels)
		if err != nil {
			return nil, err
		}
		labels = b
	}
	nodes, names, reasons := [][16]byte{}, []string{}, []string{}
	for _, n := range p.skipped {
		node, err := tenants.ParseNodeID(n.Node)
		if err != nil {
			return nil, err
		}
		nodes, names, reasons = append(nodes, node), append(names, n.Name), append(reasons, n.Reason)
	}
	who := p.scope.Principal
	// Most tenants have most of their places free: the first one tried is any.
	state, place := Created, 1+rand.IntN(MaxActive)
	if len(p.runs) == 0 {
		state, place = sum(nil), 0
	}
	args := []any{[16]byte(p.key.tenant), [16]byte(p.key.task), p.kind.Name, p.args, place, string(who.Kind), who.ID, who.Name,
		p.scope.Granted.Effective().Words(), labels, len(p.runs), p.created, p.startBefore(), p.deadline().Add(DeadlineGrace), p.created.Add(TicketLife),
		string(state), nodes, names, reasons}
	if len(p.runs) > 0 {
		args = append(args, p.rows(replica)...)
	}
	return args, nil
}

// rows are the parameters of sqlStart that are about the runs.
func (p *plan) rows(replica string) []any {
	nodes, names, states, lives := [][16]byte{}, []string{}, []string{}, []int64{}
	for _, r := range p.runs {
		state, life := Created, int64(0)
		if r.channel != nil {
			state, life = Dispatched, r.channel.life
		}
		nodes, names, states, lives = append(nodes, r.Node), append(names, r.Name), append(states, string(state)), append(lives, life)
	}
	return []any{p.deadline(), p.created.Add(RunLease), replica, nodes, names, states, lives}
}

// send gives each run to its node's channel, or tells the replica that holds
// it. Neither blocks.
func (s *Service) send(ctx context.Context, p *plan) {
	d := Dispatch{ID: p.key.task, Kind: p.kind.Name, Args: p.args, Principal: p.scope.Principal, Scopes: p.scope.Granted.Effective().Words(),
		StartBefore: p.startBefore(), Deadline: p.deadline(), Alone: len(p.runs) == 1}
	var lost []*ending
	for _, r := range p.runs {
		run := runKey{p.key, r.Node}
		switch {
		case r.channel == nil && r.Replica != "" && r.Replica != s.replica:
			s.bus.Send(r.Replica, tenantdb.Hint{Topic: topicStart, Tenant: p.key.tenant, Key: run.words()})
		case r.channel == nil:
			s.queueClaim(run)
		case r.channel.send(d):
			s.counts.dispatch(s.clock().Sub(p.created))
		default:
			lost = append(lost, ended(run, Dispatched, undelivered, s.clock()))
		}
	}
	if err := s.endRuns(ctx, p.key.tenant, lost); err != nil {
		s.log.Warn("tasks: runs that did not go out were not ended; their leases end them", "task", p.key.task.String(), "error", err)
	}
}

// principalText is a principal for people.
func principalText(kind, id, name string) string {
	if name == "" {
		name = id
	}
	return inspector.CleanText(fmt.Sprintf("%s %s", kind, name))
}
