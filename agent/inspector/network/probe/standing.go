package probe

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Bounds of what is told of connections that just go on.
const (
	maxStanding  = 16 << 10 // connections looked at
	standingRows = 20
)

// standing is a connection that is there, and what it has moved.
type standing = connectionsTaskStanding

// listStanding finds the wanted connections among the open files, each once;
// more says that there are more than are looked at.
func (tr *trace) listStanding() (found map[uint64]standing, more bool, err error) {
	it, err := tr.set.Iterate("list_standing")
	if err != nil {
		return nil, false, err
	}
	defer it.Close()
	found = map[uint64]standing{}
	raw := make([]byte, binarySize[standing]())
	for len(found) < maxStanding {
		if _, err := io.ReadFull(it, raw); err == io.EOF {
			return found, false, nil
		} else if err != nil {
			return found, false, fmt.Errorf("list connections: %w", err)
		}
		if s, ok := decode[standing](raw); ok {
			found[s.Cookie] = s
		}
	}
	return found, true, nil
}

// goingOn puts in the connections that are established now, those first that
// moved the most since the task began. before is what there was then.
func (d *connectionTask) goingOn(tr *trace, r *inspector.TaskResult) {
	now, more, err := tr.listStanding()
	if err != nil {
		r.Notes = append(r.Notes, "connections that neither opened nor ended are not listed: "+err.Error())
		return
	}
	r.Totals["established"] = uint64(len(now))
	rows := map[string]*inspector.ResultRow{}
	for cookie, s := range now {
		labels := d.labels(tr, s.Direction, s.Netns, owner(s.Owner), s.Cgroup2)
		labels["event"] = "established"
		putTuple(labels, s.T, "local", "remote")
		port := s.T.Bport
		delete(labels, "remote_port")
		delete(labels, "local_port")
		if labels["direction"] == "in" {
			port = s.T.Aport
		}
		putPort(labels, "port", port)
		key := labelKey(labels)
		row := rows[key]
		if row == nil {
			row = &inspector.ResultRow{Labels: labels, Values: map[string]float64{}}
			rows[key] = row
		}
		row.Count++
		old := d.before[cookie] // none: it began since
		row.Values["bytes_sent"] += float64(s.Sent - min(s.Sent, old.Sent))
		row.Values["bytes_received"] += float64(s.Received - min(s.Received, old.Received))
		row.Values["bytes_sent_so_far"] += float64(s.Sent)
		row.Values["bytes_received_so_far"] += float64(s.Received)
		if s.SrttUs > 0 {
			row.Values["srtt_max_us"] = max(row.Values["srtt_max_us"], float64(s.SrttUs)/8)
		}
	}
	moved := func(row *inspector.ResultRow) float64 { return row.Values["bytes_sent"] + row.Values["bytes_received"] }
	list := make([]*inspector.ResultRow, 0, len(rows))
	for _, row := range rows {
		list = append(list, row)
	}
	slices.SortFunc(list, func(a, b *inspector.ResultRow) int {
		return cmp.Or(cmp.Compare(moved(b), moved(a)), cmp.Compare(b.Count, a.Count), cmp.Compare(labelKey(a.Labels), labelKey(b.Labels)))
	})
	if len(list) > 0 {
		r.Notes = append(r.Notes, "rows with event=established count connections that are open at the end, and their bytes since the task began; the other rows count what happened: do not add them up")
	}
	if len(list) > standingRows || more {
		r.Notes = append(r.Notes, fmt.Sprintf("of the connections that are open the %d groups that moved the most are listed; totals.established is all that were looked at", min(standingRows, len(list))))
	}
	list = list[:min(len(list), standingRows)]
	for keep := inspector.MaxResultRows - len(list); len(r.Rows) > keep; {
		last := r.Rows[len(r.Rows)-1]
		r.OtherRows, r.OtherCount, r.Rows = r.OtherRows+1, r.OtherCount+last.Count, r.Rows[:len(r.Rows)-1]
	}
	for _, row := range list {
		r.Rows = append(r.Rows, *row)
	}
}
