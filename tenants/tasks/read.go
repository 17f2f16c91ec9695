package tasks

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// visible is a condition on r.node_id that keeps the nodes a selector selects,
// all of them equalities; it adds its parameters to args.
func visible(sel tenants.Selector, args *[]any) string {
	if sel.All() {
		return ""
	}
	arg := func(v any) string {
		*args = append(*args, v)
		return "$" + strconv.Itoa(len(*args))
	}
	var b strings.Builder
	b.WriteString(" and r.node_id in (select n.node_id from node n where n.tenant_id = $1")
	if len(sel.IDs) > 0 {
		ids := make([][16]byte, len(sel.IDs))
		for i, id := range sel.IDs {
			ids[i] = id
		}
		b.WriteString(" and n.node_id = any(" + arg(ids) + "::uuid[])")
	}
	keys := make([]string, 0, len(sel.Labels))
	for k := range sel.Labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		b.WriteString(" and exists (select from node_label l where l.tenant_id = $1 and l.node_id = n.node_id and l.key = " + arg(k) + " and l.value = " + arg(sel.Labels[k]) + ")")
	}
	return b.String() + ")"
}

func unknownTicket() error {
	e := fault.New(fault.NotFound, "unknown_ticket", "no task with this ticket").Do("use the ticket_id that the task's first answer gave; a task is forgotten after seven days")
	e.Field = "ticket_id"
	return e
}

// Get answers a task with what its nodes found so far. A principal who may see
// only some nodes sees the task's runs on those; a task without any is
// NotFound, as is another tenant's. It needs telltale:read.
func (s *Service) Get(ctx context.Context, scope tenants.Scope, id ID) (Task, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Task{}, err
	}
	t := Task{Ticket: id.String(), Runs: []Run{}, Coverage: tenants.Coverage{NotCovered: []tenants.NotCovered{}}}
	args := []any{[16]byte(scope.Tenant), [16]byte(id)}
	key := slices.Clone(args)
	only := visible(scope.Nodes, &args)
	var state State
	var skipped []tenants.NotCovered
	there := false
	b := &pgx.Batch{}
	b.Queue(sqlTask, key...).Query(func(rows pgx.Rows) (err error) {
		there, err = t.scan(rows, &state)
		return err
	})
	b.Queue(sqlRuns+only+sqlRunsTail, args...).Query(func(rows pgx.Rows) (err error) {
		t.Runs, err = pgx.AppendRows(t.Runs, rows, scanRun)
		return err
	})
	b.Queue(sqlSkipped+only, args...).Query(func(rows pgx.Rows) (err error) {
		skipped, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (n tenants.NotCovered, err error) {
			var node tenants.NodeID
			err = r.Scan((*[16]byte)(&node), &n.Name, &n.Reason)
			n.Node = node.String()
			return n, err
		})
		return err
	})
	if err := s.db.Read(ctx, scope.Tenant, b); err != nil {
		return Task{}, err
	}
	if !there || len(t.Runs)+len(skipped) == 0 {
		return Task{}, unknownTicket()
	}
	t.complete(state, skipped, s.clock())
	return t, nil
}

func (t *Task) scan(rows pgx.Rows, state *State) (there bool, err error) {
	var args, kind, id, name string
	_, err = pgx.ForEachRow(rows, []any{&t.Kind, &args, &kind, &id, &name, &t.Fanout, &t.CreatedAt, &t.Deadline, &t.ExpiresAt, (*string)(state), &t.EndedAt}, func() error {
		there = true
		return nil
	})
	if err != nil || !there {
		return false, err
	}
	t.By = principalText(kind, id, name)
	t.CreatedAt, t.Deadline, t.ExpiresAt, t.EndedAt = t.CreatedAt.UTC(), t.Deadline.UTC(), t.ExpiresAt.UTC(), utc(t.EndedAt)
	return true, json.Unmarshal([]byte(args), &t.Args)
}

func scanRun(r pgx.CollectableRow) (run Run, err error) {
	var node tenants.NodeID
	var permille int
	var body []byte
	err = r.Scan((*[16]byte)(&node), &run.Name, (*string)(&run.Status), &run.ErrorKind, &run.Reason, &run.Arg, &run.Message, &run.Next,
		&run.StartedAt, &run.EndedAt, &permille, &run.LeaseUntil, &run.Partial, &body)
	if err != nil {
		return run, err
	}
	run.Node, run.Progress = node.String(), float64(permille)/1000
	run.StartedAt, run.EndedAt = utc(run.StartedAt), utc(run.EndedAt)
	if run.LeaseUntil = utc(run.LeaseUntil); run.Reason != reasonLost {
		run.LeaseUntil = nil
	}
	if body != nil {
		run.Result = &inspector.TaskResult{}
		err = json.Unmarshal(body, run.Result)
	}
	return run, err
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// complete adds what follows from the runs: the task's state and coverage.
func (t *Task) complete(stored State, skipped []tenants.NotCovered, now time.Time) {
	if !now.Before(t.ExpiresAt) {
		for i := range t.Runs {
			r := &t.Runs[i]
			why := ticketExpired()
			r.Status, r.ErrorKind, r.Reason, r.Message, r.Next, r.Arg, r.Result, r.Partial = Expired, why.Kind, why.Reason, why.Msg, why.Next, "", nil, false
		}
		stored = Expired
	}
	t.Status = stored
	if len(t.Runs) > 0 {
		states := make([]State, len(t.Runs))
		for i, r := range t.Runs {
			states[i] = r.Status
		}
		t.Status = sum(states)
		t.EndedAt = t.ended()
	}
	t.Coverage.Asked = len(t.Runs) + len(skipped)
	for _, r := range t.Runs {
		if r.Status == Completed {
			t.Coverage.Answered++
			continue
		}
		reason := r.Reason
		if reason == "" {
			reason = strings.ToLower(string(r.Status))
		}
		t.Coverage.Miss(tenants.NotCovered{Node: r.Node, Name: r.Name, Reason: reason})
	}
	for _, n := range skipped {
		t.Coverage.Miss(n)
	}
}

// ended is when the last of the runs ended; nil while one is active. The
// task's own row may have been read a moment before its runs.
func (t *Task) ended() (last *time.Time) {
	for _, r := range t.Runs {
		if r.EndedAt == nil {
			return nil
		}
		if last == nil || r.EndedAt.After(*last) {
			last = r.EndedAt
		}
	}
	return last
}

func ticketExpired() inspector.Refusal {
	return inspector.Refusal{Kind: fault.NotFound.String(), Reason: "ticket_expired", Msg: fmt.Sprintf("the result was deleted after %v", TicketLife), Next: "start the task again"}
}

// List answers one page of tasks, the youngest first. It needs telltale:read.
func (s *Service) List(ctx context.Context, scope tenants.Scope, q ListQuery) (Page, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Page{}, err
	}
	limit, clamped := tenants.ClampRows(q.Limit)
	args := []any{[16]byte(scope.Tenant), s.clock()}
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	sql := sqlList + sqlListAll
	if only := visible(scope.Nodes, &args); only != "" {
		sql = sqlList + fmt.Sprintf(sqlListSome, only, only)
	}
	if q.Active {
		sql += " and t.ended_at is null"
	}
	if q.Kind != "" {
		if _, ok := s.reg.Task(q.Kind); !ok {
			return Page{}, s.unknownKind(q.Kind)
		}
		sql += " and t.kind = " + arg(q.Kind)
	}
	if q.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(q.Cursor)
		if err != nil || len(b) != len(ID{}) {
			return Page{}, fault.Bad("cursor", "not a cursor of this list").Do("use next_cursor as it was given, or start without a cursor")
		}
		sql += " and t.task_id < " + arg([16]byte(b))
	}
	sql += " order by t.task_id desc limit " + arg(limit+1)
	rows, err := tenantdb.Query(ctx, s.db, scope.Tenant, sql, args, scanSummary)
	if err != nil {
		return Page{}, err
	}
	p := Page{Tasks: rows}
	if len(rows) > limit {
		p.Tasks = rows[:limit]
		last, err := ParseID(rows[limit-1].Ticket)
		if err != nil {
			return Page{}, err
		}
		p.Truncated = &tenants.Truncated{Returned: limit, NextCursor: base64.RawURLEncoding.EncodeToString(last[:]), Hint: "ask again with the cursor, or filter by kind or active"}
	} else if clamped {
		p.Truncated = &tenants.Truncated{Returned: len(rows)}
	}
	if p.Truncated != nil && clamped {
		p.Truncated.Hint = strings.TrimSuffix(fmt.Sprintf("limit was clamped to %d; %s", limit, p.Truncated.Hint), "; ")
	}
	return p, nil
}

func scanSummary(r pgx.CollectableRow) (t Summary, err error) {
	var id ID
	var kind, who, name string
	err = r.Scan((*[16]byte)(&id), &t.Kind, (*string)(&t.Status), &kind, &who, &name, &t.CreatedAt, &t.EndedAt, &t.Nodes)
	t.Ticket, t.By, t.CreatedAt, t.EndedAt = id.String(), principalText(kind, who, name), t.CreatedAt.UTC(), utc(t.EndedAt)
	return t, err
}
