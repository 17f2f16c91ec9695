package ingest

import (
	"context"
	"sync/atomic"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// outbox is the bounded way of orders to one node. It satisfies tasks.Outbox;
// nothing but put waits. Safe for concurrent use.
type outbox struct {
	orders chan *pb.TaskOrder
	count  *counters
	gone   atomic.Bool
}

func newOutbox(c *counters) *outbox {
	return &outbox{orders: make(chan *pb.TaskOrder, maxOrders), count: c}
}

// close makes every later order fail.
func (b *outbox) close() { b.gone.Store(true) }

// Dispatch sends a request to the node.
func (b *outbox) Dispatch(d tasks.Dispatch) bool {
	r := &pb.TaskRequest{
		Task: d.ID[:], Kind: []byte(d.Kind), Args: d.Args, Scopes: d.Scopes,
		PrincipalKind: []byte(d.Principal.Kind), Principal: []byte(d.Principal.ID),
		StartBeforeNs: d.StartBefore.UnixNano(), DeadlineNs: d.Deadline.UnixNano(),
	}
	return b.offer(&pb.TaskOrder{Kind: &pb.TaskOrder_Request{Request: r}})
}

// Cancel asks the node to end a task.
func (b *outbox) Cancel(id tasks.ID) bool { return b.offer(cancelOrder(id)) }

func (b *outbox) offer(o *pb.TaskOrder) bool {
	if b.gone.Load() {
		return false
	}
	select {
	case b.orders <- o:
		b.count.orders.Add(1)
		return true
	default:
		b.count.ordersFull.Add(1)
		return false
	}
}

// put queues an order of the channel's own and waits for room.
func (b *outbox) put(ctx context.Context, o *pb.TaskOrder) error {
	select {
	case b.orders <- o:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func cancelOrder(id tasks.ID) *pb.TaskOrder {
	return &pb.TaskOrder{Kind: &pb.TaskOrder_Cancel{Cancel: &pb.TaskCancel{Task: id[:]}}}
}

func takenOrder(id tasks.ID) *pb.TaskOrder {
	return &pb.TaskOrder{Kind: &pb.TaskOrder_Taken{Taken: &pb.TaskTaken{Task: id[:]}}}
}
