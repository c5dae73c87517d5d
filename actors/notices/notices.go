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
// At most maxSending notices are sent at once by a controller, in no particular order.
package notices

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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
	maxSending = 16
	sendLimit  = 15 * time.Second
	readLimit  = 16 << 10 // of a reply's body
	queue      = "notices"
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
	Commit(ctx context.Context, commit string, platform store.Platform) (build string, state store.BuildState, err error)
}

// Notices sends notices.
type Notices struct {
	Store
	keys   *seal.Ring
	public string // URL of the pages
	client *http.Client
	set    metrics.Set
	sent   *prometheus.CounterVec // delivered, failed, dead
}

// New returns the sender. Addresses that are not public are refused unless allow has them. public
// is the URL of the pages; statuses of commits link to it.
func New(db Store, keys *seal.Ring, allow []netip.Prefix, public string) *Notices {
	dialer := &net.Dialer{Timeout: sendLimit, Control: func(_, address string, _ syscall.RawConn) error { return check(address, allow) }}
	n := &Notices{Store: db, keys: keys, public: strings.TrimSuffix(public, "/"), client: &http.Client{
		Timeout:   sendLimit,
		Transport: &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: sendLimit, MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: readLimit},
		// A receiver that moved is a fault that its owner has to know of.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	n.sent = n.set.Counter("takt_notices_total")
	return n
}

// Metrics returns the counters of notices.
func (n *Notices) Metrics() *metrics.Set { return &n.set }

// reserved are networks that are not public, beside those that netip knows.
var reserved = []netip.Prefix{ //nolint:gochecknoglobals // a constant
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	// These carry an IPv4 address inside.
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("::/96"),
}

// check refuses an address that a connection is about to be made to. The dialer calls it
// after names were resolved, so a name can't hide the address.
func check(address string, allow []netip.Prefix) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	ip := at.Addr().Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return p.Contains(ip) }
	if slices.ContainsFunc(allow, in) || ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(reserved, in) {
		return nil
	}
	return fmt.Errorf("%s is not a public address, and notice-allow does not list it", ip)
}

// Add adds the queue of notices and its worker to River's client.
func (n *Notices) Add(c *river.Config, log zerolog.Logger) {
	c.Queues[queue] = river.QueueConfig{MaxWorkers: maxSending, FetchPollInterval: time.Second}
	river.AddWorker(c.Workers, &worker{n: n, log: log})
}

type worker struct {
	river.WorkerDefaults[store.NoticeJob]
	n   *Notices
	log zerolog.Logger
}

// retries are the pauses between attempts: 25 hours in all. The migration gives a notice one
// attempt more than there are pauses.
var retries = []time.Duration{ //nolint:gochecknoglobals // a constant
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
	s, err := w.n.Receiver(ctx, job.Args.Subscription)
	switch {
	case store.CodeOf(err) == store.NotFound:
		return nil // it was deleted
	case err != nil:
		return river.JobSnooze(5 * time.Second) // an outage of the database is no attempt
	case s.Disabled != "":
		return river.JobCancel(errors.New("the subscription is disabled: " + s.Disabled))
	}
	status, err := w.n.send(ctx, s, job.Args)
	switch {
	case err == nil:
		w.n.sent.WithLabelValues("delivered").Inc()
		return nil
	case status == http.StatusGone && !s.GitHub:
		_, uerr := w.n.Update(ctx, s.ID, func(s *store.Subscription) error { s.Disabled = "its receiver answered 410 Gone"; return nil })
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
	repo, sha, _ := strings.Cut(commit, "@")
	states := map[store.BuildState]string{store.Completed: "success", store.Failed: "failure", store.Cancelled: "error"}
	for told := ""; ; {
		build, state, err := n.Commit(ctx, commit, notice.Data.Platform)
		if store.CodeOf(err) == store.NotFound || err == nil && told == build+states[state] {
			return status, nil
		}
		if err != nil {
			return 0, err
		}
		told = build + states[state]
		content := map[string]string{"state": cmp.Or(states[state], "pending"), "context": "takt/" + string(notice.Data.Platform)}
		if n.public != "" {
			content["target_url"] = n.public + "/builds/" + build
		}
		text, _ := json.Marshal(content) //nolint:errchkjson // never fails
		status, err = n.post(ctx, strings.TrimSuffix(base, "/")+"/repos/"+repo+"/statuses/"+sha, text, http.Header{
			"Accept": {"application/vnd.github+json"}, "Authorization": {"Bearer " + token},
		})
		if err != nil {
			return status, err
		}
	}
}

func (n *Notices) post(ctx context.Context, url string, body []byte, header http.Header) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("the request can't be made: %w", err)
	}
	r.Header = header
	header["Content-Type"], header["User-Agent"] = []string{"application/json"}, []string{"takt"}
	reply, err := n.client.Do(r)
	if err != nil {
		return 0, fmt.Errorf("sending: %w", err)
	}
	defer reply.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(reply.Body, readLimit)) // so that the connection can be used again
	if reply.StatusCode/100 != 2 {
		return reply.StatusCode, fmt.Errorf("the receiver answered %s", reply.Status)
	}
	return reply.StatusCode, nil
}

// sign returns the signature of the specification's version 1.
func sign(secret []byte, id, at string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// oldLife is how long the secret before signs too.
const oldLife = 24 * time.Hour

// Make adds a subscription, and returns it and its secret. With a token it is one of GitHub.
func (n *Notices) Make(ctx context.Context, s store.Subscription, token string) (store.Subscription, string, error) {
	s.ID, s.CreatedAt, s.GitHub = "sub_"+store.NewID(), time.Now(), token != ""
	secret := newSecret()
	text := secretText(secret)
	if s.GitHub {
		secret, text = []byte(token), ""
	}
	s.Secrets = n.seal(s.ID, store.NoticeSecrets{Current: secret})
	return s, text, n.Create(ctx, s)
}

// Rotate gives a subscription a new secret and returns it. The one before signs too for a day.
func (n *Notices) Rotate(ctx context.Context, id string) (string, error) {
	secret := newSecret()
	_, err := n.Update(ctx, id, func(s *store.Subscription) error {
		if s.GitHub {
			return store.NewError(store.Conflict, "Its secret is a token of GitHub: create a subscription with another token and delete this one")
		}
		last, err := n.open(*s)
		s.Secrets = n.seal(s.ID, store.NoticeSecrets{Current: secret, Old: last.Current, OldUntil: time.Now().Add(oldLife)})
		return err
	})
	return secretText(secret), err
}

func newSecret() []byte {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails: crypto/rand ends the process instead
	return secret
}

func secretText(secret []byte) string { return "whsec_" + base64.StdEncoding.EncodeToString(secret) }

func (n *Notices) seal(id string, secrets store.NoticeSecrets) []byte {
	content, _ := json.Marshal(secrets) //nolint:errchkjson // never fails
	return n.keys.Seal(seal.NoticeSecrets, id, content)
}

func (n *Notices) open(s store.Subscription) (secrets store.NoticeSecrets, err error) {
	content, err := n.keys.Open(seal.NoticeSecrets, s.ID, s.Secrets)
	if err == nil {
		err = json.Unmarshal(content, &secrets)
	}
	if err != nil {
		return secrets, fmt.Errorf("secrets of subscription %s: %w", s.ID, err)
	}
	return secrets, nil
}
