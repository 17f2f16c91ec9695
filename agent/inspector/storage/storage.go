// Package storage holds the words of the probe's storage module: requests,
// bytes, latency and errors of block devices, tasks that look closer, events.
//
// It knows nothing of how they are measured; that is the probe folder's part.
// Start reading at Register.
package storage

import "github.com/telltale-dev/telltale/agent/inspector"

// Name is the module's name.
const Name = "storage"

// The signals that a node may be able to give.
const (
	SignalRequests = "requests" // counts and bytes
	SignalLatency  = "latency"
	SignalErrors   = "errors"
)

// The metrics.
const (
	IOs         = Name + ".ios"
	Bytes       = Name + ".bytes"
	LatencyNS   = Name + ".latency_ns"
	Errors      = Name + ".errors"
	TotalIOs    = Name + ".total_ios"
	TotalBytes  = Name + ".total_bytes"
	TotalErrors = Name + ".total_errors"
)

// The label keys. A device is a whole disk by its kernel name (vda, nvme0n1,
// loop3), or Other. The operation is one of Operations.
const (
	LabelDevice = "device"
	LabelOp     = "op"
	Other       = "other" // devices beyond the bound of the module
)

// Operations are the values of LabelOp. As in the kernel's own statistics a
// write is whatever changes data and is no discard.
var Operations = [...]string{"read", "write", "discard", "flush"}

// Register adds the module's words.
func Register(r *inspector.Registry) {
	labels := []string{LabelDevice, LabelOp}
	r.Add(inspector.Component{
		Name:    Name,
		Title:   "Storage",
		Probe:   true,
		Signals: []string{SignalRequests, SignalLatency, SignalErrors},
		Metrics: []inspector.Metric{
			{Name: IOs, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalRequests, Labels: labels,
				Help: "Requests a block device completed, by operation; equal to the counts of /sys/block/DEVICE/stat."},
			{Name: Bytes, Kind: inspector.Delta, Unit: inspector.Bytes, Signal: SignalRequests, Labels: labels,
				Help: "Bytes of the requests a block device completed, by operation; 512 times the sectors of /sys/block/DEVICE/stat."},
			{Name: LatencyNS, Kind: inspector.Histogram, Unit: inspector.Nanoseconds, Signal: SignalLatency, Labels: labels,
				Help: "Time of each request from its making to its end, waiting in the queue included."},
			{Name: Errors, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalErrors, Labels: labels,
				Help: "Requests that a block device ended with an error, from the kernel's block_rq_error."},
			{Name: TotalIOs, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalRequests,
				Help: "Requests completed by all devices; a device on top of another (loop on a disk) counts in both."},
			{Name: TotalBytes, Kind: inspector.Delta, Unit: inspector.Bytes, Signal: SignalRequests, Headline: true,
				Help: "Bytes read, written and discarded by all devices; a device on top of another counts in both."},
			{Name: TotalErrors, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalErrors, Headline: true,
				Help: "Requests of all devices that ended with an error."},
		},
		Tasks:  Tasks(),
		Events: Events(),
	})
}
