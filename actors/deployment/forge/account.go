package forge

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"time"

	"github.com/google/go-github/v75/github"

	"takt/store/backoff"
)

// Account is what can be done with one credential.
type Account struct {
	g      *GitHub
	token  string
	client *github.Client
	budget *budget
	notice func(until time.Time)
}

// Login returns the account of a token. It does no I/O. notice is told when
// something has to wait, and until when; it may be nil and must be quick.
func (g *GitHub) Login(token string, notice func(until time.Time)) *Account {
	key := sha256.Sum256([]byte(token))
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.budgets[key]
	if b == nil {
		b = &budget{creates: window{limits: g.cfg.Creates}}
		g.budgets[key] = b
	}
	client := github.NewClient(g.http).WithAuthToken(token)
	client.BaseURL = g.base
	client.UserAgent = "takt"
	client.DisableRateLimitCheck = true // the budget does that, for all accounts of the token
	if notice == nil {
		notice = func(time.Time) {}
	}
	return &Account{g: g, token: token, client: client, budget: b, notice: notice}
}

// With returns the account with another notice.
func (a *Account) With(notice func(until time.Time)) *Account {
	b := *a
	b.notice = notice
	return &b
}

// Seed tells when repositories were created with this credential in the last
// hour, for a process that has just begun.
func (a *Account) Seed(ages []time.Duration) {
	now := time.Now()
	times := make([]time.Time, 0, len(ages))
	for _, age := range ages {
		times = append(times, now.Add(-age))
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.budget.creates.seed(times)
}

// header is the Authorization header that git sends.
func (a *Account) header() string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+a.token))
}

var errCallTooSlow = errors.New("the forge takes too long")

// call makes one REST call, as often as it takes: limits are waited for, and
// what is broken is tried again.
func call[T any](ctx context.Context, a *Account, doing string, create bool, f func(context.Context) (T, *github.Response, error)) (T, error) {
	var none T
	for try := 1; ; {
		value, resp, err := once(ctx, a, create, f)
		if resp == nil && errors.Is(err, errNotCalled) {
			return none, context.Cause(ctx)
		}
		if ctx.Err() != nil && err != nil {
			return none, context.Cause(ctx)
		}
		switch class, until := classify(resp, err, time.Now()); class {
		case fine:
			a.budget.calm()
			return value, nil
		case limited:
			a.budget.strike(until, a.g.cfg.SecondaryWait)
			continue // no try is used up: waiting helps
		case final:
			return none, explain(doing, resp, err)
		case broken:
			if try++; try > a.g.cfg.Tries {
				return none, explain(doing, resp, err)
			}
		}
		pause := backoff.Backoff{Min: a.g.cfg.Backoff}.Wait(try - 2)
		a.notice(time.Now().Add(pause))
		if err := sleep(ctx, pause); err != nil {
			return none, err
		}
	}
}

// errNotCalled is the end of the caller's context before anything was sent.
var errNotCalled = errors.New("not called")

// once makes one call when the budget allows it.
func once[T any](ctx context.Context, a *Account, create bool, f func(context.Context) (T, *github.Response, error)) (T, *github.Response, error) {
	var none T
	if create {
		done, err := a.budget.enter(ctx, a.notice)
		if err != nil {
			return none, nil, errNotCalled
		}
		defer done()
	}
	if err := a.budget.open(ctx, a.notice); err != nil {
		return none, nil, errNotCalled
	}
	a.notice(time.Now().Add(a.g.cfg.CallTimeout))
	defer func() { a.notice(time.Now()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, a.g.cfg.CallTimeout, errCallTooSlow)
	defer cancel()
	return f(ctx)
}
