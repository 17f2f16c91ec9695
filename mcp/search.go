package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// Hosted research clients know two tools, search and fetch, and their fixed
// answers. search looks through what one page of each list holds, and asks the
// lists again for what equals a word: a name's beginning, a label, a kind, an
// id. It never asks for a pattern, so it costs a few pages however large the
// tenant is.

// Bounds of one search.
const (
	maxHits     = 20
	maxWords    = 8
	searchSpan  = 7 * 24 * time.Hour
	labelLooks  = 8 // look-ups of a word as a label's value in a large fleet
	wholeDigits = 3 // a shorter word must stand alone to be found
)

// The kinds of document, as the first part of their ids.
const (
	docNode  = "node"
	docEvent = "event"
	docTask  = "task"
	docTool  = "tool"
)

// hit is one document that a search found.
type hit struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	URL   string `json:"url"`

	score int
}

type searchAnswer struct {
	Results []hit `json:"results"`
}

// observeSearch are the tools of the research clients' convention.
func observeSearch(s Services) []Tool {
	return []Tool{
		{
			Name: "search", Title: "Search", Set: observeSet, Scope: tenants.Read,
			Description: "Finds nodes, events and tools by words: name, id, key=value label, kind, reason. Use it when no other tool fits. Then fetch.",
			Args:        []Arg{{Name: "query", Kind: argString, Required: true}},
			Output:      searchAnswer{},
			Run:         func(ctx context.Context, c Call) (Answer, error) { return s.search(ctx, c) },
		},
		{
			Name: "fetch", Title: "Fetch", Set: observeSet, Scope: tenants.Read,
			Description: "One document whole, by an id that search gave or node:, event:, task: with an id. Use it after search.",
			Args:        []Arg{{Name: "id", Kind: argString, Required: true}},
			Output:      document{},
			Run:         func(ctx context.Context, c Call) (Answer, error) { return s.fetch(ctx, c) },
		},
	}
}

func (s Services) search(ctx context.Context, c Call) (Answer, error) {
	words := searchWords(c.Args.str("query"))
	if len(words) == 0 {
		return Answer{}, fault.Bad("query", "the query holds no word to look for").Do("send a node's name, an id, a label such as role=db, or a kind such as slow_io")
	}
	f := finding{s: s, c: c, words: words, have: map[string]bool{}}
	for _, look := range []func(context.Context) error{f.ids, f.nodes, f.events, f.tools} {
		if err := look(ctx); err != nil {
			return Answer{}, err
		}
	}
	slices.SortStableFunc(f.hits, func(a, b hit) int { return cmp.Compare(b.score, a.score) })
	hits := f.hits[:min(len(f.hits), maxHits)]
	var render func(rows int) Answer
	render = func(rows int) Answer {
		a := searchAnswer{Results: append([]hit{}, hits...)}
		if rows > 0 {
			a.Results = a.Results[:min(len(a.Results), rows)]
		}
		return asJSON(a, len(a.Results), render)
	}
	return render(0), nil
}

// asJSON is an answer whose text is the structured content itself, as the
// convention of research clients wants it. Its strings are clean already, and
// the text of a document keeps its lines.
func asJSON(body any, rows int, fit func(int) Answer) Answer {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // a hit and a document are strings
	}
	return Answer{Body: body, Raw: raw, Text: string(raw), Rows: rows, Fit: fit}
}

// searchWords splits a query. What every question holds is left out.
func searchWords(query string) []string {
	out := []string{}
	for _, w := range strings.FieldsFunc(query, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`,;"'?!()[]{}`, r) }) {
		w = strings.Trim(strings.ToLower(w), ".")
		if w != "" && len(out) < maxWords && !slices.Contains(out, w) && !slices.Contains(emptyWords, w) {
			out = append(out, w)
		}
	}
	return out
}

var emptyWords = strings.Fields("a an and any are at did do does for from has have how in is it me my of on or show tell that the there this to was what when where which who why with")

// finding collects the documents that one query finds.
type finding struct {
	s     Services
	c     Call
	words []string
	hits  []hit
	have  map[string]bool
}

// add takes a document in when its name or text holds at least one of the
// words; a whole name counts twice. sure is for what was looked up by equality.
func (f *finding) add(id, title, url, name, text string, sure bool) {
	text = strings.ToLower(name + " " + text)
	score := 0
	for _, w := range f.words {
		if w == strings.ToLower(name) {
			score++
		}
		if holds(text, w) {
			score++
		}
	}
	if sure {
		score += maxWords
	}
	if score == 0 || f.have[id] {
		return
	}
	f.have[id] = true
	f.hits = append(f.hits, hit{ID: id, Title: inspector.CleanText(title), URL: url, score: score})
}

// holds looks for a word: anywhere in the text, a short one only on its own.
func holds(text, word string) bool {
	if len(word) >= wholeDigits {
		return strings.Contains(text, word)
	}
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), word)
}

// absent reports an error that only says that there is no such thing.
func absent(err error) bool { return fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) }

// ids looks up each word that is an id, with its kind or without.
func (f *finding) ids(ctx context.Context) error {
	for _, w := range f.words {
		kind, id, typed := strings.Cut(w, ":")
		if !typed {
			kind, id = "", w
		}
		if _, err := tenants.ParseNodeID(id); err != nil {
			continue
		}
		for _, k := range []string{docNode, docEvent, docTask} {
			if kind != "" && kind != k {
				continue
			}
			d, err := f.s.document(ctx, f.c, k, id)
			switch {
			case err == nil:
				f.add(d.doc.ID, d.doc.Title, d.doc.URL, "", "", true)
			case !absent(err):
				return err
			}
		}
	}
	return nil
}

func (f *finding) node(n fleet.Node, sure bool) {
	f.add(docNode+":"+n.Node, fmt.Sprintf("node %s, %s", n.Name, n.Status), f.s.link(f.c.Scope, n.Node, "", ""),
		n.Name, strings.Join([]string{n.Node, string(n.Status), labelText(n.Labels), n.OS, n.Arch, n.Kernel, n.AgentVersion}, " "), sure)
}

// nodes looks through the first page of nodes, and asks for each word as the
// beginning of a name and as a label.
func (f *finding) nodes(ctx context.Context) error {
	ask := func(q fleet.ListQuery, sure bool) (fleet.Page, error) {
		page, err := f.s.Fleet.List(ctx, f.c.Scope, q)
		if err != nil {
			if absent(err) { // a word that can be no name or label
				err = nil
			}
			return page, err
		}
		for _, n := range page.Nodes {
			f.node(n, sure)
		}
		return page, nil
	}
	first, err := ask(fleet.ListQuery{Limit: tenants.MaxListRows}, false)
	if err != nil {
		return err
	}
	for _, w := range f.words {
		if k, v, ok := cutLabel(w); ok {
			if _, err := ask(fleet.ListQuery{Labels: map[string]string{k: v}, Limit: maxHits}, true); err != nil {
				return err
			}
		}
	}
	if first.NextCursor == "" {
		return nil
	}
	keys := []string{}
	for _, n := range first.Nodes {
		for k := range n.Labels {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	slices.Sort(keys)
	looks := 0
	for _, w := range f.words {
		if _, err := ask(fleet.ListQuery{Search: w, Limit: maxHits}, true); err != nil {
			return err
		}
		for _, k := range keys {
			if looks++; looks > labelLooks {
				break
			}
			if _, err := ask(fleet.ListQuery{Labels: map[string]string{k: w}, Limit: maxHits}, true); err != nil {
				return err
			}
		}
	}
	return nil
}

func cutLabel(word string) (key, value string, ok bool) {
	for _, sign := range []string{"=", ":"} {
		if key, value, ok = strings.Cut(word, sign); ok && key != "" && value != "" {
			return key, value, true
		}
	}
	return "", "", false
}

func (f *finding) event(e events.Event) {
	f.add(docEvent+":"+e.ID, fmt.Sprintf("%s %s on %s, %s, last seen %s", e.Severity, e.Kind, e.Name, e.State, stamp(e.Last)), f.s.link(f.c.Scope, e.Node, docEvent, e.ID),
		e.Kind, strings.Join([]string{e.ID, e.Node, e.Name, strings.ReplaceAll(e.Kind, "_", " "), e.Title, string(e.Severity), string(e.State), string(e.Origin), labelText(e.Scope)}, " "), false)
}

// events looks through the youngest events, and those of the kinds and the
// node that the words name.
func (f *finding) events(ctx context.Context) error {
	if f.s.Events == nil {
		return nil
	}
	queries := []events.ListQuery{{Limit: tenants.MaxListRows}}
	kinds := []string{}
	for _, k := range f.s.eventKinds() {
		if slices.ContainsFunc(f.words, func(w string) bool { return len(w) > wholeDigits && strings.Contains(k, w) }) {
			kinds = append(kinds, k)
		}
	}
	if len(kinds) > 0 {
		queries = append(queries, events.ListQuery{Kinds: kinds[:min(len(kinds), maxWords)], Limit: maxHits})
	}
	for _, h := range f.hits {
		if id, ok := strings.CutPrefix(h.ID, docNode+":"); ok {
			queries = append(queries, events.ListQuery{Node: id, Limit: maxHits})
			break
		}
	}
	for _, q := range queries {
		q.From = f.c.Now.Add(-searchSpan)
		page, err := f.s.Events.List(ctx, f.c.Scope, q)
		if err != nil && !absent(err) {
			return err
		}
		for _, e := range page.Events {
			f.event(e)
		}
	}
	return nil
}

// tools looks through the words of what the caller may call.
func (f *finding) tools(context.Context) error {
	for _, t := range f.c.tools() {
		f.add(docTool+":"+t.Name, "tool "+t.Title, f.s.link(f.c.Scope, "", docTool, t.Name), t.Name, strings.ReplaceAll(t.Name, "_", " ")+" "+t.Title+" "+t.Description, false)
	}
	return nil
}

// link is where the dashboard shows a document: on its node's page, or on that
// of the whole fleet.
func (s Services) link(scope tenants.Scope, node, kind, id string) string {
	out := s.dashboard(scope.Slug)
	if node != "" {
		out += "/nodes/" + url.PathEscape(node)
	}
	if kind != "" {
		out += "?" + url.Values{kind: {id}}.Encode()
	}
	return out
}

// document is what fetch answers.
type document struct {
	ID       string            `json:"id"`
	Title    string            `json:"title"`
	Text     string            `json:"text"`
	URL      string            `json:"url"`
	Metadata map[string]string `json:"metadata"`
}

// found is a document and the answer that it is the text of.
type found struct {
	doc document
	ans Answer
}

func (s Services) fetch(ctx context.Context, c Call) (Answer, error) {
	kind, id, _ := strings.Cut(c.Args.str("id"), ":")
	got, err := s.document(ctx, c, kind, id)
	if err != nil {
		return Answer{}, fault.Respell(err, map[string]string{nodeArg.Name: "id", "event_id": "id", ticketArg.Name: "id"})
	}
	var wrap func(Answer) Answer
	wrap = func(a Answer) Answer {
		d := got.doc
		d.Text = a.Text
		var fit func(int) Answer
		if a.Fit != nil {
			fit = func(rows int) Answer { return wrap(a.Fit(rows)) }
		}
		return asJSON(d, a.Rows, fit)
	}
	return wrap(got.ans), nil
}

var errNoDocument = errors.New("no such document")

// document reads one document, each as its own tool answers it.
func (s Services) document(ctx context.Context, c Call, kind, id string) (found, error) {
	none := func() (found, error) {
		return found{}, (&fault.Error{Kind: fault.NotFound, Reason: "unknown_document", Field: "id", Msg: "no document has this id", Next: "call search, and send an id of its results"}).Because(errNoDocument)
	}
	doc := document{ID: kind + ":" + id, Metadata: map[string]string{"kind": kind}}
	var ans Answer
	switch {
	case kind == docNode && id != "":
		c.Args = values{nodeArg.Name: id}
		a, err := getNode(ctx, s.Fleet, c)
		if err != nil {
			return found{}, err
		}
		n := a.Body.(nodeAnswer)
		ans, doc.ID, doc.Title, doc.URL = a, docNode+":"+n.Node.Node, fmt.Sprintf("node %s, %s", n.Name, n.Status), s.link(c.Scope, n.Node.Node, "", "")
		doc.Metadata["node"], doc.Metadata["name"], doc.Metadata["status"], doc.Metadata["labels"] = n.Node.Node, n.Name, string(n.Status), labelText(n.Labels)
	case kind == docEvent && s.Events != nil:
		c.Args = values{"event_id": id}
		a, err := oneEvent(ctx, s, c)
		if err != nil {
			return found{}, err
		}
		e := a.Body.(eventAnswer)
		ans, doc.Title, doc.URL = a, fmt.Sprintf("%s %s on %s, %s", e.Severity, e.Kind, e.Name, e.State), s.link(c.Scope, e.Node, docEvent, e.ID)
		doc.Metadata["node"], doc.Metadata["event_kind"], doc.Metadata["severity"], doc.Metadata["first_seen"], doc.Metadata["last_seen"] = e.Node, e.Kind, string(e.Severity), stamp(e.First), stamp(e.Last)
	case kind == docTask && s.Tasks != nil:
		ticket, err := tasks.ParseID(id)
		if err != nil {
			return found{}, err
		}
		t, err := s.Tasks.Get(ctx, c.Scope, ticket)
		if err != nil {
			return found{}, err
		}
		node := ""
		if len(t.Runs) == 1 {
			node = t.Runs[0].Node
		}
		c.Args = values{}
		ans, doc.Title, doc.URL = answerTask(s, t, c, false), fmt.Sprintf("task %s, %s", t.Kind, t.Status), s.link(c.Scope, node, docTask, t.Ticket)
		doc.Metadata["task"], doc.Metadata["status"], doc.Metadata["created_at"] = t.Kind, string(t.Status), stamp(t.CreatedAt)
	case kind == docTool:
		i := slices.IndexFunc(c.tools(), func(t Tool) bool { return t.Name == id })
		if i < 0 {
			return none()
		}
		t := c.tools()[i]
		ans, doc.Title, doc.URL = Answer{Text: fmt.Sprintf("%s: %s\nArguments: %s", t.Name, t.Description, schema(t.Args))}, "tool "+t.Title, s.link(c.Scope, "", docTool, t.Name)
		doc.Metadata["set"], doc.Metadata["scope"] = t.Set, t.Scope.String()
	default:
		return none()
	}
	doc.Title = inspector.CleanText(doc.Title)
	for k, v := range doc.Metadata {
		doc.Metadata[k] = inspector.CleanText(v)
	}
	return found{doc, ans}, nil
}
