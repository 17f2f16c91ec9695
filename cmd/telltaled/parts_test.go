package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPartsStopInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		p := func(name string) part {
			return part{name, time.Second, func(ctx context.Context) error {
				<-ctx.Done()
				order = append(order, name)
				return ctx.Err()
			}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := runParts(ctx, slog.New(slog.DiscardHandler), []part{p("database"), p("grpc"), p("http")}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(order, " "); got != "http grpc database" {
			t.Errorf("stopped in the order %s", got)
		}
	})
}

func TestPartsEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no database")
		stuck := make(chan struct{})
		defer close(stuck)
		err := runParts(t.Context(), slog.New(slog.DiscardHandler), []part{
			{"stuck", time.Second, func(context.Context) error { <-stuck; return nil }},
			{"failing", time.Second, func(context.Context) error { return broken }},
		})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "stuck did not stop within 1s") {
			t.Errorf("got %v", err)
		}
	})
}
