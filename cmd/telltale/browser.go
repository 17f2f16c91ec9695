package main

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"strings"
)

// browse starts a browser and does not wait for it. Nothing that it prints
// reaches the terminal.
func browse(ctx context.Context, e env, url string) error {
	var words []string
	switch custom, _, _ := strings.Cut(e.get("BROWSER"), ":"); {
	case custom != "":
		words = strings.Fields(custom)
	case runtime.GOOS == "windows":
		words = []string{"rundll32", "url.dll,FileProtocolHandler"}
	case runtime.GOOS == "darwin":
		words = []string{"open"}
	case e.get("DISPLAY") == "" && e.get("WAYLAND_DISPLAY") == "":
		return errors.New("this session has no screen")
	default:
		words = []string{"xdg-open"}
	}
	placed := false
	for i, w := range words {
		if strings.Contains(w, "%s") {
			words[i], placed = strings.ReplaceAll(w, "%s", url), true
		}
	}
	if !placed {
		words = append(words, url)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), words[0], words[1:]...) // it outlives this program
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // reaped; ends with the browser or with this program
	return nil
}
