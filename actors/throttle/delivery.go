package throttle

import (
	"context"
	"errors"
	"slices"
	"time"

	"takt/store"
	"takt/store/backoff"
	"takt/store/batching"
	"takt/store/hubspot"
)

// Pauses before an action is retried. Each failure in a row doubles them.
const (
	failPause = time.Second
	lostPause = time.Second
	// recordPause is the pause before the outcome is written again. If it is never
	// written, the claim expires.
	recordPause = 500 * time.Millisecond
	// confirmTime is how long before sending a claim is confirmed.
	confirmTime = 10 * time.Millisecond
)

// summary is the result of a claim's calls.
type summary struct {
	done, failed, released []string // callback ids
	// worst is the kind of the worst answer. text is the text of the last one that was not OK;
	// "" if all calls succeeded.
	worst hubspot.Kind
	text  string
	// retry is after what time actions that were not completed are due again. pause is how
	// long the portal gets no calls.
	retry, pause time.Duration
	touched      bool // HubSpot has completed actions, or may have
	unanswered   bool // HubSpot may still be completing an action
	recorded     store.Recorded
}

// delivery sends the actions of a claim to HubSpot. One goroutine uses it.
type delivery struct {
	p      *Portals
	portal int64
	claim  store.Claim
	token  Token
	forced bool // a 401 has already caused a refresh of the token
	// answered is when the last answer arrived.
	answered time.Time
	sum      summary
}

// errRefused means that HubSpot refused a call with more than one action.
var errRefused = errors.New("HubSpot refused a call")

// run sends list in one call. If HubSpot refuses that, it sends parts of it, until only the
// action that is refused fails.
func (d *delivery) run(ctx context.Context, list []store.ClaimedAction) {
	send := func(part []store.ClaimedAction) error { return d.send(ctx, part) }
	_ = batching.Isolate(list, func(error) bool { return true }, send, nil) // send settles a single action
}

// send sends list in one call and settles the result, or returns errRefused.
func (d *delivery) send(ctx context.Context, list []store.ClaimedAction) error {
	if !d.await(ctx, list, confirmTime) {
		return nil
	}
	held, until := d.confirm(ctx, list)
	if len(held) == 0 || !d.await(ctx, held, 0) {
		return nil
	}
	answer := d.call(ctx, held, until)
	if answer.Kind() == hubspot.BadToken && !d.forced {
		// HubSpot has revoked the token. Only one refresh is tried, because a portal that
		// always returns 401 must not cause endless refreshes.
		d.forced = true
		fresh, err := d.p.tokens.Renew(ctx, d.portal, d.token)
		if err == nil {
			d.token = fresh
			return d.send(ctx, held)
		}
		answer.Err = err
	}
	if answer.Kind() == hubspot.Refused && len(held) > 1 {
		d.note(answer, 0)
		return errRefused
	}
	d.settle(answer, held)
	return nil
}

// await waits until the budget for list is available, but for the time before. It returns
// false if ctx ended first; the actions are then released.
func (d *delivery) await(ctx context.Context, list []store.ClaimedAction, before time.Duration) bool {
	if d.claim.NotBefore.IsZero() {
		return true
	}
	if wait := time.Until(d.claim.NotBefore) - before; wait > 0 && backoff.Pause(ctx, wait) != nil {
		d.lose(idsOf(list), "takt was stopped before it was sent")
		return false
	}
	return true
}

// confirm returns the actions that this claim still has for long enough to send them, and
// until when. Others must not be sent, because another controller may send them.
func (d *delivery) confirm(ctx context.Context, list []store.ClaimedAction) (ours []store.ClaimedAction, until time.Time) {
	ids := idsOf(list)
	ctx, cancel := transaction(ctx)
	defer cancel()
	now := time.Now() // taken before the query, so that the claim lasts longer than computed
	held, left, err := d.p.db.Confirm(ctx, d.claim.Number, d.portal, ids)
	if err != nil {
		d.lose(ids, "the claim could not be confirmed")
		return nil, until
	}
	if left < d.p.cfg.call/3 {
		d.lose(held, "the claim was about to end before it was sent")
		return nil, until
	}
	ours = slices.DeleteFunc(slices.Clone(list), func(a store.ClaimedAction) bool { return !slices.Contains(held, a.CallbackID) })
	return ours, now.Add(left - left/20)
}

// lose releases actions that were not sent, with the reason.
func (d *delivery) lose(ids []string, why string) {
	d.sum.released = append(d.sum.released, ids...)
	d.sum.retry, d.sum.text = max(d.sum.retry, lostPause), why
}

// call makes one call to HubSpot, which ends at until at the latest.
func (d *delivery) call(ctx context.Context, list []store.ClaimedAction, until time.Time) hubspot.Answer {
	inputs := make([]hubspot.Completion, len(list))
	for i, a := range list {
		inputs[i] = hubspot.Completion{CallbackID: a.CallbackID, OutputFields: hubspot.OutputFields{State: hubspot.Success}}
		if a.GivingUp {
			inputs[i].OutputFields.State = hubspot.FailContinue
		}
	}
	ctx, cancel := context.WithDeadlineCause(ctx, until, errLeaseOver)
	defer cancel()
	start := time.Now()
	answer := d.p.hs.Complete(ctx, d.token.Access, inputs)
	d.answered = time.Now()
	d.p.metrics.calls.WithLabelValues(answer.Kind().String()).Observe(d.answered.Sub(start).Seconds())
	d.p.metrics.batch.Observe(float64(len(list)))
	return answer
}

var errLeaseOver = errors.New("the claim has ended")

// settle adds what an answer means for the actions of list to the summary.
func (d *delivery) settle(a hubspot.Answer, list []store.ClaimedAction) {
	ids, s := idsOf(list), &d.sum
	kind := a.Kind()
	d.note(a, kind)
	switch kind {
	case hubspot.Done:
		s.done = append(s.done, ids...)
		if a.Remaining == 0 && a.Interval > 0 {
			// The next call would be refused. A rolling window allows more after a part of
			// its length.
			s.pause = max(s.pause, a.Interval/10)
		}
	case hubspot.Wait:
		s.released = append(s.released, ids...)
		s.pause, s.retry = max(s.pause, a.Pause()), max(s.retry, a.Pause())
	case hubspot.Silent:
		s.unanswered = true
		d.fail(ids, failPause)
	case hubspot.Blocked, hubspot.BadToken:
		s.pause = max(s.pause, d.p.cfg.Blocked)
		d.fail(ids, d.p.cfg.Blocked)
	case hubspot.Broken:
		s.pause = max(s.pause, min(a.RetryAfter, time.Minute))
		d.fail(ids, max(failPause, min(a.RetryAfter, time.Minute)))
	case hubspot.Refused:
		d.fail(ids, failPause)
	}
	switch kind {
	case hubspot.Wait, hubspot.Blocked, hubspot.BadToken: // HubSpot did nothing
	default:
		s.touched = true
	}
}

// note records the kind of an answer if it is the worst so far, and its text if it is not OK.
func (d *delivery) note(a hubspot.Answer, kind hubspot.Kind) {
	d.sum.worst = max(d.sum.worst, kind)
	if !a.OK() {
		d.sum.text = a.String()
	}
}

func (d *delivery) fail(ids []string, retry time.Duration) {
	d.sum.failed = append(d.sum.failed, ids...)
	d.sum.retry = max(d.sum.retry, retry)
}

func idsOf(list []store.ClaimedAction) []string {
	ids := make([]string, len(list))
	for i, a := range list {
		ids[i] = a.CallbackID
	}
	return ids
}

// record writes the summary. It retries while the claim lasts, because actions without a
// recorded outcome are sent again.
func (d *delivery) record(ctx context.Context) (err error) {
	s := &d.sum
	if len(s.done)+len(s.failed)+len(s.released) == 0 {
		return nil // the claim has lost all its actions
	}
	o := store.Outcome{
		Claim: d.claim.Number, PortalID: d.portal, Done: s.done, Failed: s.failed, Released: s.released, Retry: s.retry,
		Error: s.text, Refund: !s.touched, Unanswered: s.unanswered, Rule: d.p.cfg.Rule,
	}
	err = persist(ctx, recordPause, func() (err error) {
		ctx, cancel := transaction(ctx)
		defer cancel()
		o.Ago = time.Since(d.answered)
		s.recorded, err = d.p.db.Record(ctx, o)
		return err
	})
	if err == nil {
		d.count()
	}
	return err
}

// count adds the recorded outcomes to the metrics.
func (d *delivery) count() {
	m, r := d.p.metrics, d.sum.recorded
	m.finished.WithLabelValues("completed").Add(float64(r.Completed))
	m.finished.WithLabelValues("given_up").Add(float64(r.GivenUp))
	m.failures.Add(float64(r.Failed))
	m.held.Add(float64(r.Held))
}
