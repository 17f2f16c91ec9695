package rig

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// RunTime is the time that the threads of a process have run on a CPU, to the
// nanosecond, where CPU counts in ticks. Threads that have ended drop out of
// it: take differences over short spans.
func RunTime(pid int) (total time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has just ended
		}
		first, _, _ := strings.Cut(string(b), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		total += time.Duration(ns)
	}
	if total == 0 {
		return 0, fmt.Errorf("the kernel keeps no run times of the threads of process %d", pid)
	}
	return total, nil
}

// Quotas sets how many calls a minute a tenant, and each of its principals,
// may make: what measures speed is not to be held back.
func (s *Stack) Quotas(ctx context.Context, slug string, perMinute int) error {
	n := strconv.Itoa(perMinute)
	_, err := admin(ctx, s.bin, s.PostgresDSN, "tenant", "quotas", slug, "--principal-rate", n, "--tenant-rate", n)
	return err
}

// Profile writes a processor profile of the server into a file.
func (s *Stack) Profile(ctx context.Context, seconds int, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.MgmtURL+"/debug/pprof/profile?seconds="+strconv.Itoa(seconds), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the profile: %s", resp.Status)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}
