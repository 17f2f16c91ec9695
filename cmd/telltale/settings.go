package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/telltale-dev/telltale/cmd/telltale/login"
)

const settingsHelp = `Settings (a flag wins over the environment)
  --url URL          the tenant's MCP URL, https://HOST/t/TENANT/mcp   TELLTALE_URL
  --token-file FILE  a file that holds an operator token of the tenant
  --token-env NAME   an environment variable that holds one; without
                     either the token comes from                       TELLTALE_TOKEN
                     and without that from telltale login
`

// flags is one parsed command line.
type flags struct {
	url, tokenFile, tokenEnv   string
	clientID, issuer, port     string
	scopes                     []string
	noBrowser, assumePKCE      bool
	noResource                 bool
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
		"url": func(s string) { f.url = s }, "token-file": func(s string) { f.tokenFile = s }, "token-env": func(s string) { f.tokenEnv = s },
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
	case "login":
		switches["no-browser"], switches["assume-pkce"], switches["no-resource"] = &f.noBrowser, &f.assumePKCE, &f.noResource
		values["scopes"] = func(s string) { f.scopes = append(f.scopes, scopeWords(s)...) }
		for name, to := range map[string]*string{"client-id": &f.clientID, "issuer": &f.issuer, "port": &f.port} {
			values[name] = func(s string) { *to = s }
		}
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
	url      string
	resource string // the URL as tokens name it
	cred     credential
}

// endpointOf reads the settings and reports every mistake at once. w carries
// the requests that renew a stored login.
func endpointOf(e env, f *flags, w *wire) (endpoint, error) {
	var wrong []string
	ep, msg := addressOf(e, f)
	if msg != "" {
		wrong = append(wrong, msg)
	}
	var err error
	if ep.cred, err = credentialOf(e, f, ep, w); err != nil {
		wrong = append(wrong, err.Error())
	}
	if len(wrong) > 0 {
		return endpoint{}, usageError{strings.Join(wrong, "; ")}
	}
	return ep, nil
}

// addressOf is the endpoint without its credential, or what is wrong with it.
func addressOf(e env, f *flags) (endpoint, string) {
	ep := endpoint{url: f.url}
	if ep.url == "" {
		ep.url = e.get("TELLTALE_URL")
	}
	if msg := checkURL(ep.url); msg != "" {
		return endpoint{}, msg
	}
	ep.url = strings.TrimRight(ep.url, "/")
	var err error
	if ep.resource, err = login.Resource(ep.url); err != nil {
		return endpoint{}, err.Error()
	}
	return ep, ""
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
	if u.Scheme == "http" && !login.Loopback(u.Hostname()) {
		return fmt.Sprintf("the URL %q would send the token unencrypted; use https", s)
	}
	return ""
}
