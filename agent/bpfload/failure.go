package bpfload

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Class is the kind of a failure.
type Class uint8

// The classes.
const (
	Failed      Class = iota // anything else
	NoPrivilege              // this process may not use BPF at all
	Refused                  // the kernel or platform refuses this feature
	Missing                  // the kernel does not have the hook or a field
	Rejected                 // the verifier rejected the program
	Disabled                 // switched off on purpose
)

func (c Class) String() string {
	return [...]string{"failed", "no privilege", "refused", "missing", "rejected", "disabled"}[c]
}

// Failure tells why a program does not run. Reason is one bounded line fit
// for a capability report.
type Failure struct {
	Program string
	Class   Class
	Reason  string
	err     error
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s", f.Program, f.Reason) }

// Unwrap returns the kernel's or library's error, if there was one.
func (f *Failure) Unwrap() error { return f.err }

// stage is how far a program got.
type stage uint8

const (
	atMap stage = iota
	atLoad
	atAttach
)

func (s stage) String() string {
	return [...]string{"creating maps", "loading the program", "attaching the program"}[s]
}

// maxReason bounds a reason in bytes.
const maxReason = 480

// verifierLines is how many of the verifier's last lines a reason keeps.
const verifierLines = 4

func classify(at stage, err error) *Failure {
	f := &Failure{Class: Failed, err: err, Reason: fmt.Sprintf("%s: %v", at, err)}
	var ve *ebpf.VerifierError
	switch {
	// Without privileges even the library's own feature tests for a map fail,
	// and then blame the kernel's age.
	case (at == atMap || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) && !errors.As(err, &ve)) && len(Lacking()) > 0:
		f.Class, f.Reason = NoPrivilege, lacks(Lacking(), Grant())
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) && !errors.As(err, &ve):
		if at == atMap {
			f.Class, f.Reason = NoPrivilege, "the kernel refuses to create BPF maps (EPERM)"
		} else {
			f.Class, f.Reason = Refused, fmt.Sprintf("the kernel refuses the feature when %s (EPERM)", at)
		}
	case errors.Is(err, unix.ENOENT) && at == atAttach, errors.Is(err, btf.ErrNotFound):
		f.Class, f.Reason = Missing, fmt.Sprintf("the kernel lacks the hook: %v", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		f.Class, f.Reason = Missing, fmt.Sprintf("the kernel lacks the feature: %v", err)
	case errors.As(err, &ve):
		f.Class = Rejected
		last := ve.Log[max(0, len(ve.Log)-verifierLines):]
		f.Reason = fmt.Sprintf("the verifier rejected the program: %v: %s", ve.Cause, strings.Join(last, " | "))
	}
	f.Reason = oneLine(f.Reason)
	return f
}

// lacks is the reason of what needs privileges, with the command that mends
// it. Reports may be cut; half a command is worse than none.
func lacks(names []string, grant string) string {
	s := "the agent lacks " + strings.Join(names, " and ")
	if grant == "" {
		return s + ", and whatever starts it withholds them"
	}
	if len(grant) > maxGrant || strings.Contains(grant, "`") {
		return s
	}
	return s + " (mend: `" + grant + "`)"
}

// maxGrant bounds the command inside a reason, in bytes.
const maxGrant = 160

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason-len("…")], "") + "…"
	}
	return inspector.CleanText(s)
}

// capabilities that tracing programs need, by their bit.
var needed = []struct {
	bit  uint
	name string
}{{unix.CAP_PERFMON, "CAP_PERFMON"}, {unix.CAP_BPF, "CAP_BPF"}}

// Lacking names the capabilities that tracing programs need and this process
// does not hold. CAP_SYS_ADMIN includes both of them.
func Lacking() []string {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return nil
	}
	has := func(bit uint) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	if has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	var out []string
	for _, c := range needed {
		if !has(c.bit) {
			out = append(out, c.name)
		}
	}
	return out
}

// Grant is the command that gives this binary the capabilities that tracing
// programs need, from its next start on. It is empty where that would not
// help: file capabilities mean nothing to a process that may gain no
// privileges, and a bounding set without them would keep it from starting.
func Grant() string {
	if nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && nnp == 1 {
		return ""
	}
	for _, c := range needed {
		if in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c.bit), 0, 0, 0); err == nil && in == 0 {
			return ""
		}
	}
	path, err := os.Executable()
	if err != nil {
		path = "bin/telltale-agent"
	}
	path = strings.TrimSuffix(path, " (deleted)") // the kernel's word for a binary that was replaced
	if strings.ContainsAny(path, " \t\n'\"\\$`;&|<>()*?[]#~!") {
		path = "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return "sudo setcap cap_bpf,cap_perfmon+ep " + path
}
