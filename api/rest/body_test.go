package rest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestStrictBodies(t *testing.T) {
	w := newWorld(t)
	target := "/t/acme/api/v1/nodes/" + w.db.String() + "/modules"
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	for body, want := range map[string]struct{ field, in string }{
		`{`:                            {"", "well-formed"},
		`[]`:                           {"", "one JSON object"},
		`null`:                         {"", "one JSON object"},
		`{}`:                           {"off", "missing"},
		`{"off":null}`:                 {"off", "missing"},
		`{"off":"network"}`:            {"off", "want an array, not string"},
		`{"off":[1]}`:                  {"off", "want a string, not number"},
		`{"Off":[]}`:                   {"Off", "unknown member; known are off"},
		`{"off":[],"on":[]}`:           {"on", "unknown member"},
		`{"off":[],"off":["network"]}`: {"off", "given twice"},
		`{"off":[{"a":1,"a":2}]}`:      {"a", "given twice"},
		`{"off":[]} {"off":[]}`:        {"", "follows"},
		`{"off":[]}x`:                  {"", "follows"},
		`{"off":` + deep + `}`:         {"", "nests deeper"},
		"{\"off\":[\"\xff\"]}":         {"", "UTF-8"},
		`{"off":["nonsense"]}`:         {"off", "no module"},
		`{"off":[` + strings.Repeat(`"network",`, 40) + `"network"]}`: {"off", "at most 32"},
	} {
		r := w.do("PUT", target, w.admin, body)
		if r.StatusCode != 400 {
			t.Errorf("%.60s: %d, want 400: %s", body, r.StatusCode, r.body)
			continue
		}
		if p := r.problem(t); p.Kind != "INVALID_ARGUMENT" || !strings.HasPrefix(p.Field, want.field) || want.field == "" && p.Field != "" || !strings.Contains(p.Detail, want.in) {
			t.Errorf("%.60s: %+v, want the field %q and %q", body, p, want.field, want.in)
		}
	}
	if r := w.do("PUT", target, w.admin, `{"off":[]}`, header{"Content-Type", "text/plain"}); r.StatusCode != 415 {
		t.Errorf("another media type: %d", r.StatusCode)
	}
	if r := w.do("PUT", target, w.admin, `{"off":["network"]}`, header{"Content-Type", "application/json; charset=utf-8"}); r.StatusCode != 200 || !strings.Contains(string(r.body), `"module":"network"`) {
		t.Errorf("with a charset: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", strings.TrimSuffix(target, "/modules"), w.read, ""); !strings.Contains(string(r.body), `"modules_off":[{"module":"network"`) {
		t.Errorf("the node does not show its switch: %s", r.body)
	}
	if r := w.do("PUT", target, w.admin, `{"off":[]}`); r.StatusCode != 200 || !strings.Contains(string(r.body), `"modules_off":[]`) {
		t.Errorf("lifting all switches: %d %s", r.StatusCode, r.body)
	}
}

func TestLargeBodies(t *testing.T) {
	w := newWorld(t)
	target := "/t/acme/api/v1/nodes/" + w.db.String() + "/modules"
	big := `{"off":["` + strings.Repeat("x", tenants.MaxRequestBytes) + `"]}`
	for name, rd := range map[string]io.Reader{
		"a stated length": strings.NewReader(big),
		"no length":       struct{ io.Reader }{strings.NewReader(big)},
	} {
		r := httptest.NewRequest("PUT", target, rd)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+w.admin)
		rec := httptest.NewRecorder()
		w.srv.ServeHTTP(rec, r)
		if rec.Code != 413 || !strings.Contains(rec.Body.String(), `"reason":"body_too_large"`) {
			t.Errorf("%s: %d %.200s", name, rec.Code, rec.Body)
		}
	}
	r := httptest.NewRequest("GET", "/t/acme/api/v1/nodes", strings.NewReader(big))
	rec := httptest.NewRecorder()
	w.srv.ServeHTTP(rec, r)
	if rec.Code != 413 {
		t.Errorf("a GET with a body: %d", rec.Code)
	}
}

// TestSlowBody sends the head of a request and then nothing.
func TestSlowBody(t *testing.T) {
	w := newWorld(t)
	cfg := w.cfg
	cfg.Own, cfg.BodyTimeout = nil, 50*time.Millisecond
	srv := httptest.NewServer(New(cfg))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(20 * time.Second)))
	_, err = fmt.Fprintf(conn, "PUT /t/acme/api/v1/nodes/%s/modules HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{\"off\":", w.db, w.admin)
	w.must(err)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	w.must(err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	w.must(err)
	if res.StatusCode != 408 || !strings.Contains(string(b), `"reason":"body_timeout"`) {
		t.Errorf("%d %s", res.StatusCode, b)
	}
}

// TestServiceMayTakeLongerThanTheBody: the body's deadline ends with the body.
func TestServiceMayTakeLongerThanTheBody(t *testing.T) {
	w := newWorld(t)
	cfg := w.cfg
	cfg.Own, cfg.BodyTimeout = nil, 50*time.Millisecond
	cfg.Fleet = broken(func(ctx context.Context) error {
		select { // three times as long as a body may take
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(150 * time.Millisecond):
			return nil
		}
	})
	srv := httptest.NewServer(New(cfg))
	defer srv.Close()
	r, err := http.NewRequest("PUT", srv.URL+"/t/acme/api/v1/nodes/db-1/modules", strings.NewReader(`{"off":[]}`))
	w.must(err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+w.admin)
	res, err := srv.Client().Do(r)
	w.must(err)
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); res.StatusCode != 200 || err != nil {
		t.Errorf("%d %s %v", res.StatusCode, b, err)
	}
}

// FuzzDecode: any bytes are decoded or refused with a fault that is safe.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"off":[]}`, `{"off":["a"],"off":[]}`, `{"off":[`, `{"a":{"b":[1,2,{"c":null}]}}`, "\xff", `{"off":1e999}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var in modulesRequest
		err := decodeStrict(b, &in)
		if got := fault.Of(err); got != nil && (got.Kind != fault.Invalid || got.Reason != "invalid_body" || got.Msg == "") {
			t.Errorf("%q: %+v", b, got)
		}
		if err != nil {
			problemOf(err, "r")
		}
	})
}
