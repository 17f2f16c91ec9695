package tasks

import (
	"testing"

	"github.com/telltale-dev/telltale/tenants"
)

// Who waits for the end of a short task is not woken while it goes on, by
// whichever way that is learnt; the end wakes everybody.
func TestPatientWaiters(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	id := w.began(w.s, w.me(), drops("n1", 5))
	k := taskKey{w.a, id}
	for _, s := range []*Service{w.s, w.s2} { // the second one hears nothing
		patient, stop := s.watches.add(k, true)
		defer stop()
		eager, stop2 := s.Subscribe(w.a, id)
		defer stop2()
		woken := func(when string, wantPatient, wantEager bool) {
			t.Helper()
			w.must(s.lookAtWatched(ctx))
			for name, c := range map[string]struct {
				moved <-chan struct{}
				want  bool
			}{"patient": {patient, wantPatient}, "eager": {eager, wantEager}} {
				select {
				case <-c.moved:
					if !c.want {
						t.Errorf("%s: the %s one was woken", when, name)
					}
				default:
					if c.want {
						t.Errorf("%s: the %s one was not woken", when, name)
					}
				}
			}
		}
		woken("first look", false, true)
		woken("nothing new", false, false)
		if s == w.s {
			w.must(ch.Accepted(ctx, id))
			w.must(s.write(ctx))
			woken("it began", false, true)
			continue
		}
		w.must(ch.Progress(ctx, id, Progress{Permille: 500}))
		w.must(w.s.write(ctx))
		woken("it got on", false, true)
		w.must(ch.Finished(ctx, id, done(1)))
		woken("it ended", true, true)
		woken("and is not fetched yet", true, true)
	}

	// A lost connection is an answer.
	id = w.began(w.s, w.me(), drops("n1", 5))
	patient, stop := w.s2.watches.add(taskKey{w.a, id}, true)
	defer stop()
	ch.Closed(ctx, false)
	w.must(w.s2.lookAtWatched(ctx))
	select {
	case <-patient:
	default:
		t.Error("a lost connection woke nobody")
	}
	// Another tenant's waiter for the same words is another one.
	stranger, stop3 := w.s.Subscribe(tenants.NewTenantID(), id)
	defer stop3()
	w.s.moved(taskKey{w.a, id})
	select {
	case <-stranger:
		t.Error("a stranger was woken")
	default:
	}
}
