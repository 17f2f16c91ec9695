package explain

import "github.com/telltale-dev/telltale/tenants/fault"

// kinds is what the kinds of errors mean. The word beside a kind is the reason
// and says more.
var kinds = map[fault.Kind]reason{
	fault.Internal:     {means: "the server failed; it is no fault of the call", next: readAgain},
	fault.Invalid:      {means: "an argument is missing, malformed or outside its bounds; none is clamped", next: "correct the argument that the error names in brackets"},
	fault.Denied:       {means: "the credential lacks the scope that the call needs", next: "ask a tenant administrator for a token with that scope"},
	fault.NotFound:     {means: "nothing of that name is in the credential's reach, or it has ended", next: "take the name from a present list: list_nodes, list_events, or the rows of an answer"},
	fault.Conflict:     {means: "the object is in another state than the call needs", next: "look at it again, then decide"},
	fault.Exhausted:    {means: "a limit on numbers, rates or sizes was reached", next: "wait for running calls to end, or ask for less"},
	fault.Unavailable:  {means: "a node, another server or the database is away", next: "explain the node if one was named, and try again"},
	fault.Deadline:     {means: "the work did not end in time", next: "ask for less, or for a shorter duration"},
	fault.Precondition: {means: "a feature is off, or the state that the call needs does not hold", next: "call get_node to see what the node can do, and why not more"},
	fault.Unauthorized: {means: "the credential is missing, wrong or expired", next: "send a valid token of this tenant"},
}

// wordOf finds what a refusal's word means: a reason, or a kind of error, which
// says less.
func wordOf(name string) (r reason, kind, ok bool) {
	if r, ok = reasons[name]; ok {
		return r, false, true
	}
	k, ok := fault.ParseKind(name)
	return kinds[k], ok, ok
}
