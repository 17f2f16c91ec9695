package audit

import (
	"net/netip"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// Bytes that a row keeps of each text.
const (
	maxWord      = 100 // enumerated words, and names that are nearly so
	maxID        = 600 // issuer|subject|client of an OAuth caller
	maxName      = 200
	maxArguments = 1000
)

// row is one line as the table has it.
type row struct {
	tenant                        tenants.TenantID
	at                            time.Time // to the microsecond, UTC
	id                            uuid.UUID
	kind, principal, name, client string
	surface, action, arguments    string
	outcome, reason               string
	bytes, durationUS             int64
	reference, from               string
	count                         int32
	replica                       string
	seq                           int64
}

// rowOf makes the row of an entry. Whoever made the entry has redacted it; this
// is the net below: clean text within bounds, in which nothing looks like a
// credential.
func (s *Service) rowOf(e Entry) row {
	if e.At.IsZero() {
		e.At = s.now()
	}
	r := row{
		tenant: e.Tenant, at: e.At.UTC().Truncate(time.Microsecond),
		kind: clean(string(e.Principal.Kind), maxWord), principal: clean(e.Principal.ID, maxID), name: clean(e.Principal.Name, maxName), client: clean(e.Principal.Client, maxID),
		surface: clean(e.Surface, maxWord), action: clean(e.Action, maxName), arguments: clean(e.Arguments, maxArguments),
		outcome: string(e.Outcome), reason: clean(e.Reason, maxWord),
		bytes: max(0, int64(e.Bytes)), durationUS: max(0, e.Duration.Microseconds()),
		reference: clean(e.Reference, maxWord), from: addr(e.From), count: int32(min(max(1, e.Count), 1<<30)), replica: s.life,
	}
	switch e.Outcome {
	case OK, Refused, Failed, Started:
	default:
		r.outcome = string(Failed)
	}
	id, err := uuid.Parse(e.ID)
	if err != nil {
		id = idAt(r.at)
	}
	r.id = id
	return r
}

// clean makes text safe to keep and to show.
func clean(s string, most int) string {
	return clip(inspector.CleanText(Scrub(clip(s, 2*most))), most)
}

// clip cuts text at a rune boundary.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// secrets are the forms of credentials that can be told from other text: this
// product's own, also cut short, JSON web tokens, what follows the word Bearer,
// and the user and password of a URL.
var secrets = regexp.MustCompile(`tt[es]?_[a-z2-7]{10,}[A-Za-z0-9_]*|eyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)*|(?i:(?:bearer|basic)(?:\s|%20|\+)+)[^\s"'\\,;)}\]]+|//[^/\s"'?#]*@`)

// Scrub puts a word in the place of whatever looks like a credential.
func Scrub(s string) string {
	if !suspect(s) {
		return s
	}
	return secrets.ReplaceAllString(s, "[redacted]")
}

// suspect reports text that holds how a secret may begin; most text does not.
func suspect(s string) bool {
	for i := 1; i < len(s); i++ {
		switch s[i-1] {
		case 't', '/':
			if s[i] == s[i-1] {
				return true
			}
		case 'e':
			if s[i] == 'y' {
				return true
			}
		case 'b', 'B': // bearer, basic
			if c := s[i] | 0x20; c == 'e' || c == 'a' {
				return true
			}
		}
	}
	return false
}

func addr(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.Unmap().WithZone("").String()
}

func parseAddr(text string) netip.Addr {
	a, _ := netip.ParseAddr(text) // '' is none
	return a
}

// idAt is a UUIDv7 of a moment, which may be a test's.
func idAt(at time.Time) uuid.UUID {
	id := uuid.New()
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = id[6]&0x0f | 0x70
	return id
}

// columnsOf is the arguments of sqlInsert.
func columnsOf(rows []row) []any {
	n := len(rows)
	tenant, at, id := make([][16]byte, n), make([]time.Time, n), make([][16]byte, n)
	texts := make([][]string, 12)
	for i := range texts {
		texts[i] = make([]string, n)
	}
	size, took, seq, count := make([]int64, n), make([]int64, n), make([]int64, n), make([]int32, n)
	for i, r := range rows {
		tenant[i], at[i], id[i] = r.tenant, r.at, r.id
		for j, v := range []string{r.kind, r.principal, r.name, r.client, r.surface, r.action, r.arguments, r.outcome, r.reason, r.reference, r.from, r.replica} {
			texts[j][i] = v
		}
		size[i], took[i], seq[i], count[i] = r.bytes, r.durationUS, r.seq, r.count
	}
	return []any{tenant, at, id, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], texts[6], texts[7], texts[8], size, took, texts[9], texts[10], count, texts[11], seq}
}
