package storage

import "github.com/telltale-dev/telltale/agent/inspector"

// The kinds of events; both are immediate.
const (
	SlowIO  = "slow_io"
	IOError = "io_error"
)

// LabelErrno is the error's name of an io_error: "EIO", "ENOSPC", …
const LabelErrno = "errno"

// Events are the module's event kinds.
func Events() []inspector.EventKind {
	return []inspector.EventKind{
		{
			Name: SlowIO, Title: "Slow I/O", Severity: inspector.Warning, Immediate: true, Signals: []string{SignalLatency},
			Help: "Requests of a block device took half a second or more, waiting in the queue included: the device or what lies under it is overloaded, throttled or failing. " +
				"See whether all requests of the device are slow (storage.latency_ns) or few, then who sends them.",
			Labels:   []string{LabelDevice, LabelOp},
			Related:  []string{LatencyNS, IOs, Bytes, Errors},
			CausedBy: []string{IOError},
			Tool:     TraceSlowIO,
		},
		{
			Name: IOError, Title: "I/O error", Severity: inspector.Critical, Immediate: true, Signals: []string{SignalErrors},
			Help: "A block device ended requests with an error. EIO: the medium, the cable or the file under it fails; ENOSPC: thin storage is full; ETIMEDOUT, ENOLINK: the path to the device. " +
				"What reads or writes there gets wrong answers; look at the kernel's log and the device's health first.",
			Labels:  []string{LabelDevice, LabelOp, LabelErrno},
			Related: []string{Errors, TotalErrors, IOs, LatencyNS},
			Tool:    MonitorDeviceIO,
		},
	}
}
