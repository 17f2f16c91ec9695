package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// What restarts remember: a kill may come at any moment, so every case goes
// on from the files alone, without a clean stop of the keeper before.
func TestRestartsAnnounceNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		killed := func() string { // a copy of the files as they are now
			to := t.TempDir()
			raw, err := os.ReadFile(filepath.Join(dir, eventFile))
			if err != nil {
				t.Fatal(err)
			}
			if len(raw) > maxEventFile {
				t.Errorf("the file has %d bytes", len(raw))
			}
			if err := os.WriteFile(filepath.Join(to, eventFile), raw, 0o600); err != nil {
				t.Fatal(err)
			}
			return to
		}
		w := &wire{}
		e, _ := keep(t, dir, w)
		e.Emit(boom("held by the server"))
		for range 2 {
			after(10 * time.Second)
			e.Observe(drops(time.Now(), map[string]int{"x": 500, "y": 0}))
		}
		after(time.Second)
		w.set(false, true)
		e.Emit(boom("pushed and not acknowledged"))
		after(time.Second)
		before := final(w.take())
		if len(before) != 3 {
			t.Fatalf("%d records", len(before))
		}

		again := &wire{}
		next, _ := keep(t, killed(), again)
		after(time.Second)
		r := again.take()
		if len(r) != 1 || r[0].Labels["exe"] != "pushed and not acknowledged" {
			t.Fatalf("after a kill: %+v", r)
		}
		if _, same := before[recordKey{r[0].Fingerprint, r[0].Begun.UnixNano()}]; !same {
			t.Error("it is another record")
		}
		// The condition still holds: no news. Another one was born meanwhile.
		for range 2 {
			after(10 * time.Second)
			next.Observe(drops(time.Now(), map[string]int{"x": 500, "y": 500}))
		}
		after(time.Second)
		var kinds []string
		for _, r := range again.take() {
			if r.Kind == "drop_burst" {
				kinds = append(kinds, r.Labels["reason"])
			}
		}
		if len(kinds) != 1 || kinds[0] != "y" {
			t.Errorf("conditions announced after the restart: %v", kinds)
		}
		// It ended while nobody looked.
		for range 3 {
			after(10 * time.Second)
			next.Observe(drops(time.Now(), map[string]int{"x": 0, "y": 500}))
		}
		synctest.Wait()
		ended := false
		for _, r := range again.take() {
			if r.Labels["reason"] == "x" {
				_, same := before[recordKey{r.Fingerprint, r.Begun.UnixNano()}]
				ended = same && r.State == inspector.EventEnded
			}
		}
		if !ended {
			t.Error("the end of the old condition was not told as such")
		}
	})
}

func TestDamagedFileIsAFreshStart(t *testing.T) {
	for name, content := range map[string]string{"torn": `{"sum":1,"bo`, "empty": "", "decayed": `{"sum":1,"body":{"form":1,"records":[],"rings":[]}}`, "zeros": strings.Repeat("\x00", 100)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, w := t.TempDir(), &wire{}
				path := filepath.Join(dir, eventFile)
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				e, stop := keep(t, dir, w)
				e.Emit(boom("a"))
				after(time.Second)
				if r := w.take(); len(r) != 1 {
					t.Errorf("%+v", r)
				}
				stop()
				if _, err := readEvents(path); err != nil {
					t.Errorf("not replaced: %v", err)
				}
			})
		})
	}
}

func TestReadOnlyDirectoryHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, filepath.Join(t.TempDir(), "gone"), w)
		e.Emit(boom("a"))
		after(2 * time.Minute)
		if r := w.take(); len(r) != 2 {
			t.Errorf("%+v", r)
		}
	})
}
