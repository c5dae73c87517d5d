package runner

import (
	"context"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// maxNext is the largest result, in bytes, with which a worker of several slots asks for its next
// build. The other slots get none meanwhile.
const maxNext = 1 << 20

// askNext makes u, the end of a, ask for the worker's next build. It returns false if it does not:
// a poll is open, whose token the request would end; the worker may not be able to run a build, or
// should not; or an upload that takes long would keep other slots from polling. If it returns
// true, the caller takes the value out of asking when it has the reply.
func (w *Worker) askNext(hard context.Context, a *assignment, u *client.Upload) bool {
	u.Next = client.Poll{}
	long := u.Result != nil && u.Result.Size > maxNext && w.cfg.Concurrency > 1
	if long || u.Fault.OfWorker() || hard.Err() != nil || w.draining() || w.slotFault(a.owner) != nil || w.exhausted(hard) {
		return false
	}
	select {
	case w.asking <- struct{}{}:
	default:
		return false
	}
	if w.unanswered {
		<-w.asking
		return false
	}
	u.Next = client.Poll{Token: w.shown(), Active: w.running()}
	return true
}

// takeNext accepts the build that came with the reply to the end of a. One that can't be run now
// is not accepted: the next poll does not list it, so it gets it again. If the worker stops or
// drains meanwhile, unregistering gives the build back; but while other slots still work, it is
// built, because it would wait for its timeout.
func (w *Worker) takeNext(hard context.Context, a *assignment, reply api.Uploaded) {
	leaves := hard.Err() != nil || w.draining() && w.cfg.Concurrency == 1
	if leaves || reply.AccessToken == "" || reply.Job != nil && !store.ValidID(reply.Job.ID) {
		return
	}
	w.keep(reply.AccessToken)
	if reply.Job == nil {
		return
	}
	w.know(w.id, reply.Job.BaseImageID)
	if w.cfg.Command.Check(hard, w.image) == nil {
		a.next = w.accept(hard, *reply.Job)
	}
}

// draining reports whether the worker takes no further builds.
func (w *Worker) draining() bool {
	select {
	case <-w.drain:
		return true
	default:
		return false
	}
}

// exhausted reports whether the worker's report is critical, or its disk nearly full. It then
// polls for one build at a time.
func (w *Worker) exhausted(ctx context.Context) bool {
	w.mu.Lock()
	unfit := w.health.unfit != nil || len(w.stuck) == w.cfg.Concurrency
	w.mu.Unlock()
	_, full := w.checkDisk(ctx)
	return unfit || full != nil
}
