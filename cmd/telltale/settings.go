package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

const settingsHelp = `Settings (a flag wins over the environment)
  --url URL          the tenant's MCP URL, https://HOST/t/TENANT/mcp   TELLTALE_URL
  --token-file FILE  a file that holds an operator token of the tenant;
                     without it the token comes from                   TELLTALE_TOKEN
`

// flags is one parsed command line.
type flags struct {
	url, tokenFile             string
	help, json, list, validate bool
	status, label              []string
	search                     string
	kind                       []string
	node, severity             string
	since, limit, origin       string
	rest                       []string
}

// parseFlags reads flags in any place; "--" ends them. The standard package
// stops at the first argument that is no flag, which call does not want.
func parseFlags(c command, args []string) (*flags, error) {
	f := &flags{}
	values := map[string]func(string){
		"url": func(s string) { f.url = s }, "token-file": func(s string) { f.tokenFile = s },
	}
	switches := map[string]*bool{"help": &f.help}
	switch c.name {
	case "nodes":
		switches["json"] = &f.json
		values["status"] = func(s string) { f.status = append(f.status, strings.Split(s, ",")...) }
		values["label"] = func(s string) { f.label = append(f.label, s) }
		values["search"] = func(s string) { f.search = s }
	case "events":
		switches["json"] = &f.json
		values["label"] = func(s string) { f.label = append(f.label, s) }
		values["kind"] = func(s string) { f.kind = append(f.kind, strings.Split(s, ",")...) }
		for name, to := range map[string]*string{"node": &f.node, "severity": &f.severity, "since": &f.since, "limit": &f.limit, "origin": &f.origin} {
			values[name] = func(s string) { *to = s }
		}
	case "tools":
		switches["json"], switches["list"] = &f.json, &f.list
	case "call":
		switches["json"] = &f.json
	case "mcp":
		switches["validate"] = &f.validate
	}
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			f.rest = append(f.rest, args[i+1:]...)
			break
		}
		if a == "-h" {
			f.help = true
			continue
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			f.rest = append(f.rest, a)
			continue
		}
		name, value, given := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if on, ok := switches[name]; ok && !given {
			*on = true
			continue
		}
		set, ok := values[name]
		switch {
		case !ok:
			return nil, usageError{fmt.Sprintf("unknown flag %s", a)}
		case given:
			set(value)
		case i+1 == len(args):
			return nil, usageError{fmt.Sprintf("--%s needs a value", name)}
		default:
			i++
			set(args[i])
		}
	}
	return f, nil
}

// endpoint is where to call and with which credential.
type endpoint struct {
	url   string
	token string
}

// endpointOf reads the settings and reports every mistake at once.
func endpointOf(e env, f *flags) (endpoint, error) {
	var wrong []string
	ep := endpoint{url: f.url}
	if ep.url == "" {
		ep.url = e.get("TELLTALE_URL")
	}
	if msg := checkURL(ep.url); msg != "" {
		wrong = append(wrong, msg)
	}
	ep.url = strings.TrimRight(ep.url, "/")
	if f.tokenFile != "" {
		raw, err := os.ReadFile(f.tokenFile)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("cannot read the token file: %v", err))
		}
		if ep.token = strings.TrimSpace(string(raw)); ep.token == "" && err == nil {
			wrong = append(wrong, "the token file "+f.tokenFile+" is empty")
		}
	} else if ep.token = strings.TrimSpace(e.get("TELLTALE_TOKEN")); ep.token == "" {
		wrong = append(wrong, "no token: set TELLTALE_TOKEN or name a --token-file")
	}
	if strings.ContainsFunc(ep.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		wrong = append(wrong, "the token holds characters that no token has; copy it again")
	}
	if len(wrong) > 0 {
		return endpoint{}, usageError{strings.Join(wrong, "; ")}
	}
	return ep, nil
}

func checkURL(s string) string {
	if s == "" {
		return "no URL: set TELLTALE_URL or --url to the tenant's MCP URL, such as https://HOST/t/acme/mcp"
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Sprintf("the URL %q is not http:// or https://; it looks like https://HOST/t/acme/mcp", s)
	}
	if u.User != nil {
		return "the URL must not hold a user or password; the token goes into TELLTALE_TOKEN"
	}
	if !strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/mcp") {
		return fmt.Sprintf("the URL %q is not a tenant's MCP URL; it looks like https://HOST/t/acme/mcp", s)
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Sprintf("the URL %q would send the token unencrypted; use https", s)
	}
	return ""
}
