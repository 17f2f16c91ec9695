package rig

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// TestNumbersAreTaken holds the made-up windows to what the server takes: the
// product's own series, every value in range.
func TestNumbersAreTaken(t *testing.T) {
	for _, n := range []int{0, 32, 200, 250} {
		m, err := NewNumbers(n)
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for i := range len(m.Layouts) * (variantsKept + 1) {
			w := m.Window(i, time.Now(), time.Second)
			if w.Layout != m.Layouts[i%len(m.Layouts)] || n > 0 && len(w.Values) != n {
				t.Fatalf("window %d of %d series has %d values of %s", i, n, len(w.Values), w.Layout.Component)
			}
			packed := inspector.AppendValues(nil, w.Layout.Series, w.Values)
			if _, refused, err := inspector.DecodeValues(packed, w.Layout.Series); err != nil || refused != 0 {
				t.Fatalf("window %d: %d refused, %v", i, refused, err)
			}
			if i < len(m.Layouts) {
				total += len(w.Values)
			}
		}
		if total > 1000 { // what one node may report
			t.Errorf("%d series a node", total)
		}
	}
}

func TestProcessFiguresAreOurs(t *testing.T) {
	began := time.Now()
	for OwnCPU() < 200*time.Millisecond && time.Since(began) < 10*time.Second {
	}
	s, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if d := (OwnCPU() - s.own).Abs(); s.parent != os.Getppid() || d > 100*time.Millisecond {
		t.Errorf("parent %d, want %d; %v away from the process's own account", s.parent, os.Getppid(), d)
	}
	m, err := ReadMemory(os.Getpid())
	if err != nil || m.Peak < m.RSS || m.RSS < m.Anon || m.Anon == 0 {
		t.Errorf("memory %+v, %v", m, err)
	}
}

func TestOrderStatistics(t *testing.T) {
	d := []time.Duration{5, 1, 4, 2, 3}
	if q := Quantile(d, 0.5); q != 3 {
		t.Errorf("median of 1 to 5 is %d", q)
	}
	if q := Quantile(d, 1); q != 5 {
		t.Errorf("last of 1 to 5 is %d", q)
	}
	if m := Median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("median of 1 to 4 is %v", m)
	}
	if Quantile(nil, 0.5) != 0 || Median(nil) != 0 {
		t.Error("nothing has a median")
	}
}

// TestToolReadsAnAnswer holds the reading of answers against both forms that
// a server may choose, and a refusal.
func TestToolReadsAnAnswer(t *testing.T) {
	const whole = `{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"n":3}}}`
	for name, c := range map[string]struct{ body, want string }{
		"JSON":    {whole, `{"n":3}`},
		"events":  {"event: message\ndata: {\"method\":\"notifications/progress\"}\n\nevent: message\ndata: " + whole + "\n\n", `{"n":3}`},
		"refusal": {`{"result":{"isError":true,"structuredContent":{"error":"NOT_FOUND"}}}`, ""},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Mcp-Name") != "look" {
				t.Errorf("%s: asked with %v", name, r.Header)
			}
			_, _ = io.WriteString(w, c.body)
		}))
		doc, _, err := Tenant{MCPURL: srv.URL}.Tool(t.Context(), srv.Client(), "secret", "look", nil)
		if string(doc) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %s, %v", name, doc, err)
		}
		srv.Close()
	}
}

// TestChildEnds spawns a program that only a signal ends.
func TestChildEnds(t *testing.T) {
	c, err := Spawn([]string{"WORD=hello"}, "/bin/sh", "-c", "echo $WORD; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Await(t.Context(), 10*time.Second, func() bool { return c.Output() == "hello\n" }); err != nil {
		t.Errorf("%v; it says %q", err, c.Output())
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	if err := c.Await(t.Context(), 10*time.Second, func() bool { return false }); err == nil {
		t.Error("an ended process is waited for")
	}
}

func TestOutputIsBounded(t *testing.T) {
	var o tail
	for range 1000 {
		_, _ = o.Write([]byte(strings.Repeat("x", 100)))
	}
	_, _ = o.Write([]byte("end"))
	if s := o.String(); len(s) > 2*tailKept+100 || !strings.HasSuffix(s, "xend") {
		t.Errorf("%d bytes kept, the last of them %q", len(s), s[len(s)-10:])
	}
}

// The figures are what the runtime says of this process.
func TestLiveMemory(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	srv := httptest.NewServer(mux)
	defer srv.Close()
	before, err := ReadLive(t.Context(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	held := make([]byte, 8<<20)
	after, err := ReadLive(t.Context(), srv.URL)
	if grown := int64(after.Heap) - int64(before.Heap); err != nil || grown < 7<<20 || grown > 10<<20 || after.Stacks == 0 || after.Sum() <= after.Heap {
		t.Errorf("%+v, then %+v, %v", before, after, err)
	}
	runtime.KeepAlive(held)
	for _, bad := range []string{"", "# HeapAlloc = x\n", "# HeapAlloc = 12\n"} {
		if l, err := readLive(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: %+v", bad, l)
		}
	}
}
