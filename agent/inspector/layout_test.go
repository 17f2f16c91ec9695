package inspector

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sample() *Layout {
	return NewLayout("network", []Series{
		{Metric: "network.retransmits", Kind: Delta, Unit: Count},
		{Metric: "network.drops", Kind: Delta, Unit: Count, Labels: []Label{{"reason", "TCP_NO_SOCKET"}, {"family", "ipv4"}}},
		{Metric: "network.load", Kind: Gauge, Unit: Ratio},
		{Metric: "network.latency", Kind: Histogram, Unit: Nanoseconds, Labels: []Label{{"device", "sda"}}},
	})
}

func TestLayoutIsCanonical(t *testing.T) {
	a := sample()
	b := NewLayout("network", []Series{a.Series[3], a.Series[1], a.Series[2], a.Series[0]})
	if a.Hash != b.Hash {
		t.Errorf("the order of series changes the hash: %s, %s", a.Hash, b.Hash)
	}
	if c := NewLayout("storage", b.Series); c.Hash == a.Hash {
		t.Error("another component has the same hash")
	}
	if err := a.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
	if got := a.Series[0].String(); got != `network.drops{family="ipv4",reason="TCP_NO_SOCKET"}` {
		t.Errorf("String = %s", got)
	}
	for i, s := range a.Series {
		if got := a.Find(s); got != i {
			t.Errorf("Find(%s) = %d, want %d", s, got, i)
		}
	}
	if got := a.Find(Series{Metric: "network.none"}); got != -1 {
		t.Errorf("Find of an absent series = %d", got)
	}
}

func TestLayoutRoundTrip(t *testing.T) {
	l := sample()
	got, err := DecodeLayout(l.AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l, got); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
	enc := l.AppendBinary(nil)
	for n := range enc {
		if _, err := DecodeLayout(enc[:n]); err == nil {
			t.Fatalf("%d of %d bytes decode", n, len(enc))
		}
	}
	if _, err := DecodeLayout(append(enc, 0)); err == nil {
		t.Error("a trailing byte is accepted")
	}
	// A count far beyond the input must not make the decoder allocate.
	if _, err := DecodeLayout([]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}); err == nil {
		t.Error("an absurd count is accepted")
	}
}

func TestLayoutCheckRefuses(t *testing.T) {
	one := func(s Series) *Layout { return &Layout{Component: "network", Series: []Series{s}} }
	ok := Series{Metric: "network.drops", Kind: Delta, Unit: Count}
	with := func(f func(*Series)) *Layout { s := ok; f(&s); return one(s) }
	many := &Layout{Series: make([]Series, MaxSeries+1)}
	for name, l := range map[string]*Layout{
		"too many series": many,
		"400 KB label":    with(func(s *Series) { s.Labels = []Label{{"device", strings.Repeat("x", 400<<10)}} }),
		"empty key":       with(func(s *Series) { s.Labels = []Label{{"", "x"}} }),
		"bad utf-8":       with(func(s *Series) { s.Labels = []Label{{"device", "\xfftest"}} }),
		"unsorted labels": with(func(s *Series) { s.Labels = []Label{{"b", "1"}, {"a", "1"}} }),
		"repeated label":  with(func(s *Series) { s.Labels = []Label{{"a", "1"}, {"a", "2"}} }),
		"1 MB unit":       with(func(s *Series) { s.Unit = Unit(strings.Repeat("U", 1<<20)) }),
		"hidden unit":     with(func(s *Series) { s.Unit = "by\u202ete" }),
		"no unit":         with(func(s *Series) { s.Unit = "" }),
		"1 MB component":  {Component: strings.Repeat("c", 1<<20), Series: []Series{ok}},
		"no component":    {Series: []Series{ok}},
		"line break":      {Component: "net\nwork", Series: []Series{ok}},
		"too many labels": with(func(s *Series) { s.Labels = make([]Label, MaxLabels+1) }),
		"no kind":         with(func(s *Series) { s.Kind = Unspecified }),
		"unknown kind":    with(func(s *Series) { s.Kind = 9 }),
		"metric name":     with(func(s *Series) { s.Metric = "Network Drops" }),
		"repeated series": {Component: "network", Series: []Series{ok, ok}},
	} {
		if err := l.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		} else if len(err.Error()) > 300 {
			t.Errorf("%s: the reason has %d bytes", name, len(err.Error()))
		}
	}
}

func FuzzDecodeLayout(f *testing.F) {
	f.Add(sample().AppendBinary(nil))
	f.Add([]byte{1, 0, 0})
	f.Add([]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := DecodeLayout(b)
		if err != nil {
			return
		}
		if l.Check() != nil {
			return
		}
		// What passes both is canonical up to the encoding of lengths: it
		// decodes to itself and finds each of its series.
		again, err := DecodeLayout(l.AppendBinary(nil))
		if err != nil {
			t.Fatalf("own encoding: %v", err)
		}
		if diff := cmp.Diff(l.Series, again.Series); diff != "" {
			t.Fatal(diff)
		}
		for i, s := range l.Series {
			if l.Find(s) != i {
				t.Fatalf("series %d is not found", i)
			}
		}
		if bytes.Equal(b, l.AppendBinary(nil)) != (l.Hash == again.Hash) {
			t.Fatal("two encodings share a hash")
		}
	})
}
