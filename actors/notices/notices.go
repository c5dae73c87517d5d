// Package notices sends notices to subscribers: webhooks by the Standard Webhooks
// specification, and commit statuses to GitHub.
//
// Triggers insert a notice as a River job, in the transaction of the change that it reports.
// So no notice is lost, and none reports a change that was rolled back.
//
// # State
//
// PostgreSQL has subscriptions and notices. The package has none.
//
// # Failure
//
// A notice that fails is tried 11 times within a day, then it is dead until it is redriven. A
// controller that is killed while it sends leaves the notice to another, which sends it again
// with the same id.
//
// # Concurrency
//
// A controller sends at most eachPlaces notices of a subscription at once, in no particular
// order, and maxSending in all. Each subscription has a place of its own, so no number of slow
// receivers delays what others get.
package notices

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/rs/zerolog"

	"takt/store"
	"takt/store/backoff"
	"takt/store/metrics"
	"takt/store/seal"
)

const (
	eachPlaces   = 8
	sharedPlaces = 60 // for all, beside the first place of each
	maxSending   = store.MaxSubscriptions + sharedPlaces
	sendLimit    = 15 * time.Second
	readLimit    = 16 << 10 // of a reply's body
	// Queue is the one of River.
	Queue = "notices"
	// Notices are looked for every takeEvery while some are sent, else every lookEvery.
	takeEvery = 100 * time.Millisecond
	lookEvery = time.Second
)

// Store is the SQL of notices.
type Store interface {
	List(ctx context.Context) ([]store.Subscription, error)
	Create(ctx context.Context, s store.Subscription) error
	Delete(ctx context.Context, id string) error
	Deliveries(ctx context.Context, id string, limit int) ([]store.Delivery, error)
	Redrive(ctx context.Context, id string, number int64) (int, error)
	Test(ctx context.Context, id string) error
	Find(ctx context.Context, id string) (store.Subscription, error)
	Receiver(ctx context.Context, id string) (store.Subscription, error)
	Update(ctx context.Context, id string, change func(*store.Subscription) error) (store.Subscription, error)
	Needed(ctx context.Context) (bool, error)
	Backlog(ctx context.Context) (store.NoticeBacklog, error)
	Take(ctx context.Context, client string, free, each, shared int) ([]int64, error)
	Commit(ctx context.Context, commit string, platform store.Platform) (store.Build, error)
}

// Notices sends notices.
type Notices struct {
	Store
	keys      *seal.Ring
	public    string            // URL of the pages
	transport http.RoundTripper // follows no redirects: a receiver that moved is a fault that its owner has to know of
	set       metrics.Set
	sent      *prometheus.CounterVec // delivered, failed, dead

	looked, moved atomic.Int64 // when notices were looked for last, and when one was taken or its sending ended; in ns
}

// New returns the sender. Addresses that are not public are refused unless allow has them. public
// is the URL of the pages; statuses of commits link to it.
func New(db Store, keys *seal.Ring, allow []netip.Prefix, public string) *Notices {
	dialer := &net.Dialer{Timeout: sendLimit, Control: func(_, address string, _ syscall.RawConn) error { return check(address, allow) }}
	n := &Notices{Store: db, keys: keys, public: strings.TrimSuffix(public, "/"), transport: &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: sendLimit, MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: readLimit,
	}}
	n.sent = n.set.Counter("takt_notices_total")
	return n
}

// Metrics returns the counters of notices.
func (n *Notices) Metrics() *metrics.Set { return &n.set }

// Add adds the queue of notices and its worker to River's client.
func (n *Notices) Add(c *river.Config, log zerolog.Logger) {
	c.Queues[Queue] = river.QueueConfig{MaxWorkers: maxSending, FetchPollInterval: takeEvery}
	river.AddWorker(c.Workers, &worker{n: n, log: log})
}

// TakeJobs chooses the notices that a client of River sends next, see jobs.Work.
func (n *Notices) TakeJobs(ctx context.Context, client string, free int) ([]int64, error) {
	now := time.Now().UnixNano()
	if since := now - n.looked.Load(); since < int64(lookEvery) && now-n.moved.Load() > int64(5*takeEvery) {
		return nil, nil
	}
	n.looked.Store(now)
	numbers, err := n.Take(ctx, client, free, eachPlaces, sharedPlaces)
	if len(numbers) > 0 {
		n.moved.Store(now)
	}
	return numbers, err
}

type worker struct {
	river.WorkerDefaults[store.NoticeJob]
	n   *Notices
	log zerolog.Logger
}

// retries are the pauses between attempts: 25 hours in all. The migration gives a notice one
// attempt more than there are pauses.
var retries = []time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 4 * time.Hour, 7 * time.Hour, 10 * time.Hour,
}

// NextRetry implements river.Worker.
func (*worker) NextRetry(job *river.Job[store.NoticeJob]) time.Time {
	pause := retries[min(max(job.Attempt, 1), len(retries))-1]
	return time.Now().Add(backoff.Backoff{Min: pause, Max: pause}.Wait(0))
}

// Work sends a notice.
func (w *worker) Work(ctx context.Context, job *river.Job[store.NoticeJob]) error {
	defer func() { w.n.moved.Store(time.Now().UnixNano()) }()
	s, err := w.n.Receiver(ctx, job.Args.Subscription)
	switch {
	case store.CodeOf(err) == store.NotFound:
		return nil // it was deleted
	case err != nil:
		return river.JobSnooze(5 * time.Second) // an outage of the database is no attempt
	case s.Version != job.Args.Version:
		return river.JobCancel(errMoved)
	case s.Disabled != "":
		return river.JobCancel(errors.New("the subscription is disabled: " + s.Disabled))
	}
	status, err := w.n.send(ctx, s, job.Args)
	switch {
	case err == nil:
		w.n.sent.WithLabelValues("delivered").Inc()
		return nil
	case status == http.StatusGone && !s.GitHub:
		_, uerr := w.n.Update(ctx, s.ID, func(now *store.Subscription) error {
			if now.Version != s.Version {
				return errMoved // the URL before answered
			}
			now.Disabled = "its receiver answered 410 Gone"
			return nil
		})
		if uerr == nil {
			w.log.Warn().Str("subscription", s.ID).Msg("subscription disabled: its receiver answered 410 Gone")
			w.n.sent.WithLabelValues("dead").Inc()
			return river.JobCancel(err)
		}
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled):
		return river.JobSnooze(0) // the controller stops, which is no attempt
	}
	if job.Attempt >= job.MaxAttempts {
		w.log.Warn().Str("subscription", s.ID).Str("notice", job.Args.ID).Err(err).Msg("notice given up")
		w.n.sent.WithLabelValues("dead").Inc()
	} else {
		w.n.sent.WithLabelValues("failed").Inc()
	}
	return err
}

var errMoved = errors.New("the subscription's URL was changed after this notice was made")

// send makes one attempt. It returns the status of the reply, 0 if there was none.
func (n *Notices) send(ctx context.Context, s store.Subscription, job store.NoticeJob) (status int, err error) {
	var body bytes.Buffer
	if err := json.Compact(&body, job.Body); err != nil {
		return 0, fmt.Errorf("the notice is no JSON: %w", err)
	}
	secrets, err := n.open(s)
	if err != nil {
		return 0, err
	}
	if s.GitHub {
		return n.setStatus(ctx, s.URL, string(secrets.Current), body.Bytes())
	}
	now := time.Now()
	at := strconv.FormatInt(now.Unix(), 10)
	var signatures []string
	for _, secret := range secrets.Active(now) {
		signatures = append(signatures, sign(secret, job.ID, at, body.Bytes()))
	}
	return n.post(ctx, s.URL, body.Bytes(), http.Header{
		"Webhook-Id": {job.ID}, "Webhook-Timestamp": {at}, "Webhook-Signature": {strings.Join(signatures, " ")},
	})
}

// setStatus sets the status of the commit that a notice's build builds. Because notices have no
// order, it tells the state that the newest build of the commit has now, until that is the same
// after it was told.
func (n *Notices) setStatus(ctx context.Context, base, token string, body []byte) (status int, err error) {
	var notice struct {
		Data struct {
			Platform store.Platform    `json:"platform"`
			Labels   map[string]string `json:"labels"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &notice); err != nil {
		return 0, fmt.Errorf("the notice can't be read: %w", err)
	}
	commit := notice.Data.Labels[store.GitHubLabel]
	repo, sha, ok := store.ParseCommit(commit)
	if !ok {
		return 0, river.JobCancel(errors.New("the label github is not OWNER/REPO@SHA"))
	}
	if !confidential(base) {
		return 0, errors.New("the token of GitHub is sent to https URLs only: change the subscription's URL")
	}
	states := map[store.BuildState]string{store.Completed: "success", store.Failed: "failure", store.Cancelled: "error"}
	for told := ""; ; {
		b, err := n.Commit(ctx, commit, notice.Data.Platform)
		if store.CodeOf(err) == store.NotFound || err == nil && told == b.ID+states[b.State] {
			return status, nil
		}
		if err != nil {
			return 0, err
		}
		told = b.ID + states[b.State]
		content := map[string]string{"state": cmp.Or(states[b.State], "pending"), "context": "takt/" + string(notice.Data.Platform)}
		if text := describe(b); text != "" {
			content["description"] = text
		}
		if n.public != "" {
			content["target_url"] = n.public + "/builds/" + b.ID
		}
		text, _ := json.Marshal(content) // never fails
		status, err = n.post(ctx, strings.TrimSuffix(base, "/")+"/repos/"+repo+"/statuses/"+sha, text, http.Header{
			"Accept": {"application/vnd.github+json"}, "Authorization": {"Bearer " + token},
		})
		if err != nil {
			return status, err
		}
	}
}

// maxDescription is the longest description of a status that GitHub takes.
const maxDescription = 140

// describe says how a build ended and what was built; "" if nothing is known.
func describe(b store.Build) string {
	var parts []string
	if text := b.Ended.String(); text != "" {
		parts = append(parts, text)
	}
	if i := b.Inputs; i != nil {
		if i.IsDirty() {
			parts = append(parts, "with changes that are not committed")
		}
		if i.Branch != "" {
			parts = append(parts, "branch "+i.Branch)
		}
	}
	return store.Clip(strings.Join(parts, ", "), maxDescription)
}

// post makes a request. Its errors don't have the URL, because it may be secret.
func (n *Notices) post(ctx context.Context, at string, body []byte, header http.Header) (status int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sendLimit, errSlow)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("the URL can't be used")
	}
	r.Header = header
	header["Content-Type"], header["User-Agent"] = []string{"application/json"}, []string{"takt"}
	reply, err := n.transport.RoundTrip(r)
	if err != nil {
		return 0, fmt.Errorf("sending to %s: %s", store.Origin(at), hide(err.Error(), r.URL))
	}
	defer reply.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(reply.Body, readLimit)) // so that the connection can be used again
	if reply.StatusCode/100 != 2 {
		return reply.StatusCode, fmt.Errorf("the receiver answered %s", hide(reply.Status, r.URL))
	}
	return reply.StatusCode, nil
}

// hide removes the path and query of a URL from a text, because a receiver may repeat them.
func hide(text string, at *url.URL) string {
	if path := at.RequestURI(); path != "/" {
		text = strings.ReplaceAll(text, path, "/…")
	}
	return text
}

var errSlow = fmt.Errorf("no answer within %s", sendLimit)

// sign returns the signature of the specification's version 1.
func sign(secret []byte, id, at string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
