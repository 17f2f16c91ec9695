package uplink

import (
	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// chunkBytes is the most of a result that one frame carries.
const chunkBytes = 64 << 10

func taskID(b []byte) (id inspector.TaskID, ok bool) {
	if len(b) != len(id) {
		return id, false
	}
	return inspector.TaskID(b), true
}

func answerFrame(id inspector.TaskID, r *inspector.Refusal) *pb.TaskFrame {
	return &pb.TaskFrame{Kind: &pb.TaskFrame_Answer{Answer: &pb.TaskAnswer{Task: id[:], Refusal: refusalProto(r)}}}
}

func progressFrame(u inspector.TaskUpdate) *pb.TaskFrame {
	p := &pb.TaskProgress{Task: u.ID[:], Permille: min(u.Permille, 1000)}
	if len(u.Partial) <= inspector.MaxPartialBytes {
		p.Partial = u.Partial
	}
	return &pb.TaskFrame{Kind: &pb.TaskFrame_Progress{Progress: p}}
}

// endFrames cuts a task's end into chunks; the last one, which may be the only
// one, carries the outcome.
func endFrames(id inspector.TaskID, e *inspector.TaskEnd) []*pb.TaskFrame {
	result, outcome, why := e.Result, e.Outcome, e.Refusal
	if len(result) > inspector.MaxResultBytes {
		result, outcome = nil, inspector.TaskFailed
		why = &inspector.Refusal{
			Kind: "RESOURCE_EXHAUSTED", Reason: inspector.ReasonResultTooLarge, Msg: "the result is larger than a node may send",
			Next: "narrow the target or shorten the duration",
		}
	}
	var out []*pb.TaskFrame
	for i := 0; ; i++ {
		n := min(len(result), chunkBytes)
		c := &pb.TaskChunk{Task: id[:], Index: uint32(i), Data: result[:n]}
		result = result[n:]
		out = append(out, &pb.TaskFrame{Kind: &pb.TaskFrame_Chunk{Chunk: c}})
		if len(result) == 0 {
			c.Last, c.Outcome, c.Refusal = true, []byte(outcome), refusalProto(why)
			return out
		}
	}
}

func refusalProto(r *inspector.Refusal) *pb.TaskRefusal {
	if r == nil {
		return nil
	}
	return &pb.TaskRefusal{Kind: []byte(r.Kind), Reason: []byte(r.Reason), Arg: []byte(r.Arg), Message: []byte(r.Msg), Next: []byte(r.Next)}
}
