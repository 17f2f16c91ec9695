package rest

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// What the administration of a tenant shares: answers of 201 and 204, versions
// of what several people may change, scopes and selectors in bodies.

// maker makes something. It answers the value and where it is, below the
// tenant's API; empty is nowhere.
type maker func(*call) (v any, at string, err error)

// created adapts a maker: 201, with Location.
func (s *Server) created(h maker) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		scope, _ := auth.ScopeFrom(r.Context())
		v, at, err := h(&call{w: w, r: r, scope: scope, query: parseParams(r.URL.RawQuery)})
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if at != "" {
			w.Header().Set("Location", "/t/"+scope.Slug+"/api/v1/"+at)
		}
		s.write(w, r, http.StatusCreated, v)
	}
}

// removed adapts what leaves nothing to show: 204.
func (s *Server) removed(h func(*call) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		scope, _ := auth.ScopeFrom(r.Context())
		if err := h(&call{w: w, r: r, scope: scope, query: parseParams(r.URL.RawQuery)}); err != nil {
			s.fail(w, r, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// version sets the ETag of something by the time of its last change.
func (c *call) version(changed time.Time) {
	n := int64(0) // never changed
	if !changed.IsZero() {
		n = changed.UnixMicro()
	}
	c.w.Header().Set("ETag", `"`+strconv.FormatInt(n, 36)+`"`)
}

// since reads the version that a change is made on: the If-Match of the
// request; nil when it has none, or "*", which is whatever is there.
func (c *call) since() (*time.Time, error) {
	have := strings.Join(c.r.Header.Values("If-Match"), ",")
	if have == "" || have == "*" {
		return nil, nil
	}
	word, ok := strings.CutPrefix(have, `"`)
	word, closed := strings.CutSuffix(word, `"`)
	n, err := strconv.ParseInt(word, 36, 64)
	if !ok || !closed || err != nil || n < 0 {
		return nil, fault.Bad("If-Match", "want the ETag of an earlier answer, or *")
	}
	t := time.Time{}
	if n > 0 {
		t = time.UnixMicro(n).UTC()
	}
	return &t, nil
}

// scopesOf reads the words of a list of scopes.
func scopesOf(field string, words []string) (tenants.Scopes, error) {
	s, unknown := tenants.ParseScopes(words)
	if len(unknown) > 0 {
		return 0, badBody(field, "%q is no scope; known are %s", clip(unknown[0]), tenants.EveryScope)
	}
	return s, nil
}

// selectorBody limits something to nodes; absent is all nodes.
type selectorBody struct {
	Labels map[string]string `json:"labels,omitempty"`
	IDs    []string          `json:"ids,omitempty"`
}

// UnmarshalJSON refuses members that it does not know: a misspelt one must not
// widen what was to be limited.
func (b *selectorBody) UnmarshalJSON(in []byte) error {
	type fields selectorBody
	return nested("nodes", in, (*fields)(b))
}

// nested is decodeStrict for an object within the body.
func nested(field string, in []byte, dst any) error {
	err := decodeStrict(in, dst)
	if f, ok := err.(*fault.Error); ok {
		f.Field = strings.TrimSuffix(field+"."+f.Field, ".")
	}
	return err
}

func (b *selectorBody) selector(field string) (sel tenants.Selector, err error) {
	if b == nil {
		return sel, nil
	}
	sel.Labels = b.Labels
	for _, text := range b.IDs {
		id, err := tenants.ParseNodeID(text)
		if err != nil {
			return tenants.Selector{}, badBody(field+".ids", "%q is no node's id", clip(text)).Do("list the nodes to see their ids")
		}
		sel.IDs = append(sel.IDs, id)
	}
	if sel.All() {
		return sel, badBody(field, "an empty selector would select all nodes").Do("give labels or ids, or leave " + field + " out for all nodes")
	}
	return sel, nil
}

// selectorOf shows a selector; all nodes are nil.
func selectorOf(sel tenants.Selector) *selectorBody {
	if sel.All() {
		return nil
	}
	b := &selectorBody{Labels: sel.Labels}
	for _, id := range sel.IDs {
		b.IDs = append(b.IDs, id.String())
	}
	return b
}

// page is what a list adds to its rows.
type page struct {
	NextCursor string   `json:"next_cursor,omitempty"`
	Notes      []string `json:"notes,omitempty"`
}

// listArgs reads limit and cursor, and refuses what the list does not know.
func listArgs(c *call) (cursor string, limit int, err error) {
	limit, cursor = c.query.limit(), c.query.cursor()
	return cursor, limit, c.query.done()
}
