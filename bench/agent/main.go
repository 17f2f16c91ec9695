// Command agent measures what the real agent takes from an idle machine:
// processor time, memory, and the peak while it starts.
//
// It starts a dev stack of its own, with the probe as far as this user's
// privileges go, and watches the agent's process from outside. Everything
// else on the machine is noise that it reports. Start reading at run.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	settle     = 15 * time.Second // after ready: the first windows have gone
	kernelSpan = 10 * time.Second
	maxCPU     = 0.01 // of one core
	maxRSS     = 40 << 20
	maxPeak    = 2.0  // start peak over steady memory
	quietLoad  = 0.10 // share of the machine that others may use and it still counts as idle
)

func main() {
	bin := flag.String("bin", "bin", "`DIR` of the built programs")
	results := flag.String("results", "", "`FILE` to append the result lines to")
	length := flag.Duration("for", time.Minute, "how long the agent is watched")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *length, rig.NewTable(*results)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, length time.Duration, table *rig.Table) (err error) {
	fmt.Printf("agent: watched for %v, load before %s\n", length, rig.Load())
	level, err := capabilities(ctx, bin)
	if err != nil {
		return err
	}
	s, err := rig.Start(ctx, bin, "--agents", "2")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	pid, err := realAgent(s.AgentPIDs)
	if err != nil {
		return err
	}
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	w, err := watch(ctx, pid, length)
	if err != nil {
		return err
	}
	kernel, err := inKernel(ctx, pid)
	if err != nil {
		kernel = "not measured: " + err.Error()
	}
	fmt.Printf("  signals: %s\n", level)
	if w.others > quietLoad {
		fmt.Printf("  THE MACHINE WAS NOT IDLE: everything but the agent used %.0f %% of its %d CPUs, load after %s; the agent then counts more events\n", 100*w.others, runtime.NumCPU(), rig.Load())
	} else {
		fmt.Printf("  the machine was idle: everything but the agent used %.1f %% of its %d CPUs\n", 100*w.others, runtime.NumCPU())
	}
	fmt.Printf("  resident %.1f MiB, of it %.1f anonymous (the rest is the program file's pages); peak %.1f MiB\n", mib(w.steady.RSS), mib(w.steady.Anon), mib(w.steady.Peak))
	fmt.Printf("  in the kernel: %s\n", kernel)
	peak := float64(w.steady.Peak) / float64(w.steady.RSS)
	return errors.Join(
		table.Add("agent CPU", fmt.Sprintf("%.2f %% of a core", 100*w.cpu), "≤ 1 %", w.cpu <= maxCPU),
		table.Add("agent memory, resident", fmt.Sprintf("%.1f MiB", mib(w.steady.RSS)), "≤ 40 MiB", w.steady.RSS <= maxRSS),
		table.Add("agent memory, start peak over steady", fmt.Sprintf("%.2f ×", peak), "≤ 2 ×", peak <= maxPeak),
	)
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// capabilities counts what the probe can do for this user, from the agent's
// own report.
func capabilities(ctx context.Context, bin string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "telltale-agent"), "check", "--json").Output()
	if err != nil {
		return "", fmt.Errorf("telltale-agent check: %w", err)
	}
	var report struct {
		Capabilities []struct{ Level, Source string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return "", fmt.Errorf("telltale-agent check: %w", err)
	}
	n := map[string]int{}
	for _, s := range report.Capabilities {
		n[strings.TrimSpace(s.Level+" "+s.Source)]++
	}
	return strings.TrimPrefix(fmt.Sprint(n), "map"), nil
}

// realAgent finds the one that runs the collectors among the stack's agents.
func realAgent(pids []int) (int, error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if words := bytes.Split(b, []byte{0}); err == nil && len(words) > 1 && string(words[1]) == "run" {
			return pid, nil
		}
	}
	return 0, errors.New("the stack runs no real agent")
}

// watched is what was seen over the span.
type watched struct {
	cpu    float64    // share of one core
	others float64    // share of the machine that all other processes took
	steady rig.Memory // median of the samples; Peak since the start of the agent
}

func watch(ctx context.Context, pid int, length time.Duration) (w watched, err error) {
	own0, err := rig.CPU(pid)
	if err != nil {
		return w, err
	}
	all0, err := rig.MachineCPU()
	if err != nil {
		return w, err
	}
	began := time.Now()
	var rss, anon []float64
	for time.Since(began) < length {
		if err := sleep(ctx, time.Second); err != nil {
			return w, err
		}
		if w.steady, err = rig.ReadMemory(pid); err != nil {
			return w, fmt.Errorf("the agent is gone: %w", err)
		}
		rss, anon = append(rss, float64(w.steady.RSS)), append(anon, float64(w.steady.Anon))
	}
	took := time.Since(began)
	own1, err := rig.CPU(pid)
	if err != nil {
		return w, err
	}
	all1, err := rig.MachineCPU()
	if err != nil {
		return w, err
	}
	w.cpu = (own1 - own0).Seconds() / took.Seconds()
	w.others = ((all1 - all0) - (own1 - own0)).Seconds() / took.Seconds() / float64(runtime.NumCPU())
	w.steady.RSS, w.steady.Anon = uint64(rig.Median(rss)), uint64(rig.Median(anon))
	return w, nil
}

// inKernel says what the agent's BPF programs take, in whose-ever name they
// run. It follows the watch because the measuring itself costs some 20 ns a run.
func inKernel(ctx context.Context, pid int) (string, error) {
	p, err := rig.OpenPrograms(pid)
	if err != nil {
		return "", err
	}
	defer p.Close()
	t0, n0, err := p.Spent()
	if err != nil {
		return "", err
	}
	if err := sleep(ctx, kernelSpan); err != nil {
		return "", err
	}
	t1, n1, err := p.Spent()
	if err != nil {
		return "", err
	}
	took, runs := t1-t0, n1-n0
	return fmt.Sprintf("%d programs, %.0f runs a second, %.2f %% of a core, maps of %.1f MiB", p.Len(),
		float64(runs)/kernelSpan.Seconds(), 100*took.Seconds()/kernelSpan.Seconds(), mib(p.MapBytes)), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
