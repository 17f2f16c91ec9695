package tasks

import (
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// message is what moves a run: a word of its node, a word of a caller, or the
// passing of time by the server's clock.
type message uint8

// The messages.
const (
	claimed        message = iota // a replica that holds the node's channel sends it
	undelivered                   // it was not sent after all, or this life of the agent does not know it
	accepted                      // the node began it
	rejected                      // the node refused it
	progressed                    // the node works on it
	completed                     // the node ended it
	failed                        // the node ended it without success
	cancelled                     // the node ended it on request
	withdrawn                     // a caller ends what was not sent
	cancelAsked                   // a caller asks the node to end it
	cancelOver                    // the node did not end it in time
	connectionLost                // its node's channel broke
	handedOver                    // its node's channel was closed as planned
	resumed                       // the node is back and still has it
	restarted                     // another life of the agent is there
	leaseOver                     // the node is not back in time
	startOver                     // it was not begun in time
	deadlineOver                  // it was not ended in time
)

// transitions is the whole of how a run moves: what a message makes of each
// state in which it means something. Everywhere else it changes nothing, so
// that a message may come twice or late. Terminal states have no way out;
// only the end of the ticket's life makes them EXPIRED.
var transitions = map[message]map[State]State{
	claimed:        {Created: Dispatched},
	undelivered:    {Dispatched: Failed, Running: Failed},
	accepted:       {Dispatched: Running, Running: Running},
	rejected:       {Dispatched: Failed},
	progressed:     {Dispatched: Running, Running: Running},
	completed:      {Dispatched: Completed, Running: Completed},
	failed:         {Dispatched: Failed, Running: Failed},
	cancelled:      {Dispatched: Cancelled, Running: Cancelled},
	withdrawn:      {Created: Cancelled},
	cancelAsked:    {Dispatched: Dispatched, Running: Running},
	cancelOver:     {Dispatched: Cancelled, Running: Cancelled},
	connectionLost: {Dispatched: Dispatched, Running: Running},
	handedOver:     {Dispatched: Dispatched, Running: Running},
	resumed:        {Dispatched: Running, Running: Running},
	restarted:      {Dispatched: Failed, Running: Failed},
	leaseOver:      {Dispatched: Disconnected, Running: Disconnected},
	startOver:      {Created: Expired, Dispatched: Expired},
	deadlineOver:   {Created: Expired, Dispatched: TimedOut, Running: TimedOut},
}

// from lists the states in which a message leads to a state, sorted: the
// condition of the statement that makes the move.
func (m message) from(to State) []string {
	var list []string
	for s, t := range transitions[m] {
		if t == to {
			list = append(list, string(s))
		}
	}
	slices.Sort(list)
	return list
}

// next is what a message makes of a state; moves is false when it means
// nothing there.
func next(s State, m message) (to State, moves bool) {
	to, moves = transitions[m][s]
	if !moves {
		return s, false
	}
	return to, true
}

// rank orders the states of a fan-out's runs: its own is the first of them
// that any run has, once all are terminal.
func rank() []string {
	return []string{string(Completed), string(Cancelled), string(Failed), string(TimedOut), string(Disconnected), string(Expired)}
}

// sum is the state of a task whose runs are in these states.
func sum(runs []State) State {
	if len(runs) == 1 {
		return runs[0]
	}
	if slices.ContainsFunc(runs, func(s State) bool { return !s.Terminal() }) {
		return Running
	}
	for _, s := range rank() {
		if slices.Contains(runs, State(s)) {
			return State(s)
		}
	}
	return Failed // no node took it
}

// standing is what time decides over a run by.
type standing struct {
	state                 State
	held                  bool // a replica holds the node's channel
	startBefore, deadline time.Time
	lease, cancelAt       *time.Time
}

// answerGrace is how long a node's answer may be on its way after the moment
// by which a run must have begun.
const answerGrace = time.Second

// due says what the passing of time means for a run now.
func (r standing) due(now time.Time) (m message, is bool) {
	past := func(t *time.Time, grace time.Duration) bool { return t != nil && !now.Before(t.Add(grace)) }
	switch {
	case r.state == Created:
		return startOver, past(&r.startBefore, 0)
	case r.state != Dispatched && r.state != Running:
		return 0, false
	case past(r.cancelAt, DeadlineGrace):
		return cancelOver, true
	case past(&r.deadline, DeadlineGrace):
		return deadlineOver, true
	case past(r.lease, 0):
		return leaseOver, true
	case r.state == Dispatched && r.held:
		return startOver, past(&r.startBefore, answerGrace)
	}
	return 0, false
}

// reasonLost is the reason of an active run whose node is away for a moment.
const reasonLost = "node_connection_lost"

// why is what a caller is told of a run that ended by m, unless the node said
// it itself. nil: it needs no reason.
func (m message) why(s State) *inspector.Refusal {
	switch m {
	case undelivered:
		return &inspector.Refusal{Kind: "UNAVAILABLE", Reason: "not_delivered", Msg: "the request did not reach the node", Next: "start the task again"}
	case restarted:
		return &inspector.Refusal{Kind: "UNAVAILABLE", Reason: inspector.ReasonAgentRestarted, Msg: "the agent on the node was started anew and the task ended with its former life", Next: "start the task again; look at the node's events for why it restarted"}
	case leaseOver:
		return &inspector.Refusal{Kind: "UNAVAILABLE", Reason: "node_disconnected", Msg: "the node lost its connection and did not come back in time", Next: "look at the node's status and start the task again when it is online"}
	case startOver:
		return notStarted(s)
	case deadlineOver:
		if s == Created {
			return notStarted(s)
		}
		return &inspector.Refusal{Kind: "DEADLINE_EXCEEDED", Reason: "timed_out", Msg: "the node did not end the task by its deadline", Next: "start it again, with a shorter duration or a narrower target"}
	case withdrawn, cancelled:
		return &inspector.Refusal{Reason: "cancelled", Msg: "it was cancelled on request"}
	case cancelOver:
		return &inspector.Refusal{Reason: "cancelled", Msg: "it was cancelled on request; the node did not confirm it"}
	}
	return nil
}

func notStarted(s State) *inspector.Refusal {
	msg := "replica away: no server process that holds the node's task channel took the request in time"
	if s == Dispatched {
		msg = "the node did not answer the request in time"
	}
	return &inspector.Refusal{Kind: "UNAVAILABLE", Reason: "not_started", Msg: msg, Next: "try again in a moment; look at the node's status if it stays"}
}
