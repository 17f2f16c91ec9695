package symbols

import (
	"context"
	"time"
)

// Times of naming.
const (
	maxNaming  = 6 * time.Second // on a machine with time to spare it is far less than one
	afterEnd   = time.Second     // for a caller that gave up, but takes what there is
	beforehand = time.Second     // before the caller's deadline, to tell what was found
)

// Until makes the context for naming what was found by a task that runs in
// ctx: it ends some seconds from now, a second after ctx was cancelled, and a
// second before ctx's deadline, whichever comes first.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	end := time.Now().Add(maxNaming)
	if d, ok := ctx.Deadline(); ok && ctx.Err() == nil && d.Add(-beforehand).Before(end) {
		end = d.Add(-beforehand)
	}
	naming, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(afterEnd):
			cancel()
		case <-naming.Done():
		}
	})
	return naming, func() { stop(); cancel() }
}
