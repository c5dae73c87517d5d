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

// Account is what one credential allows.
type Account struct {
	g      *GitHub
	token  string
	client *github.Client
	budget *budget
}

// Login returns the account of a token. It does no I/O.
func (g *GitHub) Login(token string) *Account {
	key := sha256.Sum256([]byte(token))
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.budgets[key]
	if b == nil {
		b = newBudget(g.cfg.Creates)
		g.budgets[key] = b
	}
	client := github.NewClient(g.http).WithAuthToken(token)
	client.BaseURL = g.base
	client.UserAgent = "takt"
	client.DisableRateLimitCheck = true // the budget does that, for all accounts of the token
	return &Account{g: g, token: token, client: client, budget: b}
}

// Seed passes a new process the times when repositories were created with this credential in the
// last hour.
func (a *Account) Seed(ages []time.Duration) {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	if len(a.budget.creates.uses) > 0 {
		return // this process has better figures
	}
	now := time.Now()
	for _, age := range ages {
		a.budget.creates.uses = append(a.budget.creates.uses, &use{answered: now.Add(-age)})
	}
}

// header is the Authorization header that git sends.
func (a *Account) header() string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+a.token))
}

var errCallTooSlow = errors.New("the forge takes too long")

// call makes one REST call. It waits for rate limits and retries broken calls.
func call[T any](ctx context.Context, a *Account, doing string, create bool, f func(context.Context) (T, *github.Response, error)) (T, error) {
	var none T
	for failures := 0; ; {
		value, resp, err := once(ctx, a, create, f)
		if err == nil {
			a.budget.calm()
			return value, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		class, until := classify(resp, err, time.Now())
		if class == limited {
			a.budget.strike(until, a.g.cfg.SecondaryWait)
			continue // this uses up no try, because waiting helps
		}
		if failures++; class == final || failures == a.g.cfg.Tries {
			return none, explain(doing, resp, err)
		}
		if err := a.backOff(ctx, failures); err != nil {
			return none, err
		}
	}
}

// once makes one call when the budget allows it.
func once[T any](ctx context.Context, a *Account, create bool, f func(context.Context) (T, *github.Response, error)) (none T, _ *github.Response, err error) {
	if create {
		done, err := a.budget.enter(ctx)
		if err != nil {
			return none, nil, err
		}
		defer done()
	}
	if err := a.budget.open(ctx); err != nil {
		return none, nil, err
	}
	notice(ctx, time.Now().Add(a.g.cfg.CallTimeout))
	defer func() { notice(ctx, time.Now()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, a.g.cfg.CallTimeout, errCallTooSlow)
	defer cancel()
	return f(ctx)
}

// backOff waits after a number of failures in a row. The wait doubles each time, up to 30
// s, with jitter.
func (a *Account) backOff(ctx context.Context, failures int) error {
	return wait(ctx, nil, time.Now().Add(backoff.Backoff{Min: a.g.cfg.Backoff}.Wait(failures-1)))
}
