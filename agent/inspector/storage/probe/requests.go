package probe

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// totals of one device and operation: cumulative when read, an increase in
// a window.
type totals struct {
	ios, bytes, errors, untimed uint64
	latencySum                  uint64
	latency                     [40]uint64
	unknown                     bool // ios and bytes have no increase yet
}

// device holds the totals by operation, in the order of storage.Operations.
type device [len(storage.Operations)]totals

func (d *device) moved() bool {
	for i := range d {
		if d[i].ios|d[i].bytes|d[i].errors != 0 {
			return true
		}
	}
	return false
}

func (d *device) plus(v *storageDeviceTotals) {
	for i := range v.Op {
		t, o := &d[i], &v.Op[i]
		t.ios += o.Ios
		t.bytes += o.Bytes
		t.errors += o.Errors
		t.untimed += o.Untimed
		t.latencySum += o.LatencySum
		for b := range o.Latency {
			t.latency[b] += o.Latency[b]
		}
	}
}

func (d *device) minus(old *device) {
	for i := range d {
		t, o := &d[i], &old[i]
		t.ios -= o.ios
		t.bytes -= o.bytes
		t.errors -= o.errors
		t.untimed -= o.untimed
		t.latencySum -= o.latencySum
		for b := range t.latency {
			t.latency[b] -= o.latency[b]
		}
	}
}

// fold adds the increase of a device that has no series of its own.
func (d *device) fold(o *device) {
	for i := range d {
		t, o := &d[i], &o[i]
		t.ios += o.ios
		t.bytes += o.bytes
		t.errors += o.errors
		t.latencySum += o.latencySum
		for b := range t.latency {
			t.latency[b] += o.latency[b]
		}
		t.unknown = t.unknown || o.unknown
	}
}

// requestMaps reads the programs' maps. They begin at zero with the module
// and are this process's own, so an increase is a plain difference.
type requestMaps struct {
	set     *bpfload.Set
	devices *ebpf.Map
	other   *ebpf.Map
	last    map[string]device
	keys    map[string]storageDevice
	missed  map[string]uint64 // by program
}

func newRequestMaps(set *bpfload.Set, devices, other *ebpf.Map) *requestMaps {
	return &requestMaps{set: set, devices: devices, other: other,
		last: map[string]device{}, keys: map[string]storageDevice{}, missed: map[string]uint64{}}
}

// add puts the increases since the last call into seen, what was folded into
// Other into w.Truncated, and the runs that the kernel skipped into w.Lost.
func (r *requestMaps) add(seen map[string]*device, w *inspector.Window) error {
	now, err := r.read()
	if err != nil {
		return err
	}
	costs, err := r.set.Costs()
	if err != nil {
		return err // nothing is taken yet: the next window holds all of it
	}
	for name, d := range now {
		old := r.last[name]
		inc := d
		inc.minus(&old)
		seen[name] = &inc
		if name == storage.Other {
			for i := range inc {
				w.Truncated += inc[i].ios + inc[i].errors
			}
		}
	}
	r.last = now
	for _, c := range costs {
		w.Lost += c.Missed - r.missed[c.Program]
		r.missed[c.Program] = c.Missed
	}
	return nil
}

// full says that a device without an entry may have been counted as Other.
func (r *requestMaps) full() bool { return len(r.keys) >= int(r.devices.MaxEntries()) }

// walks is how often a walk is tried that a vanishing key cut short.
const walks = 3

func (r *requestMaps) read() (map[string]device, error) {
	var now map[string]device
	var err error
	for range walks {
		now = map[string]device{}
		err = bpfload.Each(r.devices, func(key storageDevice, per []storageDeviceTotals) {
			name := deviceName(key)
			d := now[name]
			for i := range per {
				d.plus(&per[i])
			}
			now[name] = d
			r.keys[name] = key
		})
		if !errors.Is(err, ebpf.ErrIterationAborted) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	per, err := bpfload.Values[storageDeviceTotals](r.other, uint32(0))
	if err != nil {
		return nil, err
	}
	var rest device
	for i := range per {
		rest.plus(&per[i])
	}
	if rest.moved() {
		now[storage.Other] = rest
	}
	return now, nil
}

// drop forgets a device that is gone. It comes back from zero if the kernel
// reuses its name.
func (r *requestMaps) drop(name string) {
	if key, ok := r.keys[name]; ok {
		_ = r.devices.Delete(key) // gone already: the same result
	}
	delete(r.keys, name)
	delete(r.last, name)
}

// deviceName is the label of a map key; sysfs writes "!" where a kernel name
// has "/".
func deviceName(key storageDevice) string {
	raw, _, _ := bytes.Cut(key.Name[:], []byte{0})
	name, _ := inspector.CleanLabel(strings.ReplaceAll(string(raw), "/", "!"))
	if name == "" || name == storage.Other {
		return fmt.Sprintf("%q", name)
	}
	return name
}
