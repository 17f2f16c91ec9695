package tenantdb

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/telltale-dev/telltale/tenants"
)

// packet is one notification: who sent it, and topic, tenant and key of each
// hint.
type packet struct {
	From  string      `json:"f"`
	Hints [][3]string `json:"h"`
}

func (b *Bus) receive(payload string) {
	var p packet
	if json.Unmarshal([]byte(payload), &p) != nil || p.From == b.self {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range p.Hints {
		t, err := tenants.ParseTenantID(h[1])
		if err != nil {
			continue
		}
		b.stats.Received++
		b.deliver(Hint{h[0], t, h[2]})
	}
}

// pack sorts hints by channel into payloads within busPayload.
func (b *Bus) pack(batch []outgoing) (channels, payloads []string) {
	open, size := map[string]*packet{}, map[string]int{}
	flush := func(ch string) {
		text, err := json.Marshal(open[ch])
		if err == nil && len(text) <= busPayload {
			channels, payloads = append(channels, ch), append(payloads, string(text))
		}
		delete(open, ch)
	}
	for _, o := range batch {
		words := [3]string{o.Topic, o.Tenant.String(), o.Key}
		text, err := json.Marshal(words)
		if err != nil {
			continue
		}
		if open[o.to] != nil && size[o.to]+len(text)+1 > busPayload {
			flush(o.to)
		}
		if open[o.to] == nil {
			open[o.to], size[o.to] = &packet{From: b.self}, len(b.self)+32
		}
		open[o.to].Hints = append(open[o.to].Hints, words)
		size[o.to] += len(text) + 1
	}
	for ch := range open {
		flush(ch)
	}
	return channels, payloads
}

// channelOf is the channel of one replica, whatever its name holds.
func channelOf(replica string) string {
	if replica == "" {
		return busAll
	}
	sum := sha256.Sum256([]byte(replica))
	return "telltale_" + hex.EncodeToString(sum[:12])
}
