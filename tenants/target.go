package tenants

// TargetQuery says which nodes work is meant for. Exactly one of Node and
// Labels is set.
type TargetQuery struct {
	Node      string            // id or unique name
	Labels    map[string]string // nodes that bear all of these; revoked ones are left out
	Component string            // whose switch and signals Target.Off speaks of; empty: none
	Signals   []string          // of the component; empty: it is off when all of them are
	Limit     int               // most rows; 0: no more than MaxListRows
}

// Target is one node that work is meant for.
type Target struct {
	Node    NodeID
	Name    string // clean
	Status  string // "online", "stale", "offline", "quarantined", "duplicate", "revoked", "never"
	Replica string // the server process that holds its stream, as last heard; empty: none
	Off     string // why the component or a signal of it is off there; empty: it is not known to be
	Matched int    // how many nodes the query found, beyond Limit too
}

// Key is the target's id and name in one word: a node that is still called so.
func (t Target) Key() string { return t.Node.String() + "/" + t.Name }
