package throttle

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"takt/actors/otp"
	"takt/store"
	"takt/store/backoff"
	"takt/store/hubspot"
	"takt/store/seal"
)

// Tokens is the handle of OAuthRefreshLock. It gets and stores the portals' tokens. Safe for
// concurrent use.
type Tokens struct {
	ref     otp.Ref
	db      Store
	hs      *hubspot.Client
	app     hubspot.App
	keys    *seal.Ring
	metrics *figures
	call    time.Duration // the time limit of a call to HubSpot

	installs installs
}

// Spec describes the actor to its supervisor.
func (t *Tokens) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID: "oauth_refresh_lock", Server: func() otp.Server { return &refreshLock{t: t} },
		Shutdown: t.call + 2*transactionTime, // time to store tokens that HubSpot has issued
	}
}

// Token gives this app access to a portal.
type Token struct {
	Access  string
	version int64
}

// String hides the token from logs.
func (Token) String() string { return "(token)" }

// Access returns a valid token. Errors: NotFound (the portal has not installed the app),
// Unavailable (an outage of the database or of HubSpot), *hubspot.RefusedError.
func (t *Tokens) Access(ctx context.Context, portal int64) (Token, error) {
	return t.ask(ctx, wantToken{portal: portal})
}

// Renew returns a newer token than refused, which HubSpot has rejected. It refreshes it unless
// another caller has done so already. Its errors are those of Access.
func (t *Tokens) Renew(ctx context.Context, portal int64, refused Token) (Token, error) {
	return t.ask(ctx, wantToken{portal: portal, than: refused.version})
}

func (t *Tokens) ask(ctx context.Context, w wantToken) (Token, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.patience(), errSlowRefresh)
	defer cancel()
	return call[Token](ctx, t.ref, w)
}

// patience returns how long to wait for a refresh, including one by another controller.
func (t *Tokens) patience() time.Duration { return t.call + transactionTime }

var errSlowRefresh = errors.New("no token in time")

// explain returns why there is no token, in one line without secrets.
func explain(err error) string {
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e.Message
	}
	if e, ok := errors.AsType[*hubspot.RefusedError](err); ok {
		err = e
	}
	return err.Error()
}

// seal seals tokens for the database.
func (t *Tokens) seal(portal int64, k hubspot.Tokens) store.SealedTokens {
	row := strconv.FormatInt(portal, 10)
	return store.SealedTokens{
		PortalID: portal, ExpiresIn: k.ExpiresIn,
		Access:  t.keys.Seal(seal.AccessToken, row, []byte(k.Access)),
		Refresh: t.keys.Seal(seal.RefreshToken, row, []byte(k.Refresh)),
	}
}

// open unseals tokens.
func (t *Tokens) open(k store.SealedTokens) (hubspot.Tokens, error) {
	row := strconv.FormatInt(k.PortalID, 10)
	access, aerr := t.keys.Open(seal.AccessToken, row, k.Access)
	refresh, rerr := t.keys.Open(seal.RefreshToken, row, k.Refresh)
	if err := cmp.Or(aerr, rerr); err != nil {
		return hubspot.Tokens{}, fmt.Errorf("tokens of portal %d: %w", k.PortalID, err)
	}
	return hubspot.Tokens{Access: string(access), Refresh: string(refresh), ExpiresIn: k.ExpiresIn}, nil
}

// Authorize returns the URL of HubSpot's page on which a portal installs the app, and a
// secret that the installer must pass to Install. Nothing is stored: the URL has a signed
// state, which is valid for ten minutes and only together with the secret.
func (t *Tokens) Authorize(context.Context) (at, secret string, err error) {
	if t.app.ClientID == "" || t.app.ClientSecret == "" || t.app.RedirectURL == "" {
		return "", "", store.NewError(store.InvalidState, "HubSpot is not configured: client id, client secret and public URL are needed")
	}
	secret = rand.Text()
	return t.hs.AuthorizeURL(t.app, newStates(t.keys).sign(secret, time.Now().Add(stateLife))), secret, nil
}

// Install completes an authorization. It exchanges the code, which HubSpot accepts once, for
// tokens, looks up their portal, and stores them. Errors: InvalidArgument if the state is
// invalid, expired, another installer's or was used too often, or if HubSpot refuses the code;
// Overloaded if there are too many installations at once; Unavailable.
func (t *Tokens) Install(ctx context.Context, state, secret, code string) (portal int64, err error) {
	if state == "" || code == "" {
		return 0, bad("state and code are required")
	}
	if !newStates(t.keys).good(state, secret, time.Now()) {
		return 0, bad("state is unknown, too old or another browser's: begin again")
	}
	if err := t.installs.wait(ctx, state); err != nil {
		return 0, err
	}
	k, err := t.hs.Exchange(ctx, t.app, code)
	if err != nil {
		return 0, refusal(err)
	}
	portal, err = t.hs.Whose(ctx, k.Access)
	if err != nil {
		return 0, refusal(err)
	}
	sealed := t.seal(portal, k)
	if err := persist(ctx, keepPause, func() error { return t.db.Install(ctx, sealed) }); err != nil {
		return 0, err
	}
	otp.Cast(t.ref, installed{portal})
	return portal, nil
}

const (
	// exchangeGap is the shortest time between two exchanges. Anybody can cause them, and
	// HubSpot limits them for takt's client.
	exchangeGap = 200 * time.Millisecond
	// exchangePatience is how long an installation waits for its exchange.
	exchangePatience = 5 * time.Second
	// stateUses is how often a state may be used, because an installer may reload the page.
	stateUses = 3
	// maxStates is of how many states the uses are remembered.
	maxStates = 1 << 14
)

// installs limits the exchanges. Safe for concurrent use.
type installs struct {
	mu sync.Mutex // guards what follows
	// next is when the next exchange may begin.
	next time.Time
	// used counts the uses of each state since turned, before those in the previous period. A
	// period is as long as a state is valid.
	used, before map[string]int
	turned       time.Time
}

// wait counts a use of state and waits until its exchange may begin.
func (i *installs) wait(ctx context.Context, state string) error {
	wait, err := i.enter(state, time.Now())
	if err != nil {
		return err
	}
	return backoff.Pause(ctx, wait)
}

func (i *installs) enter(state string, now time.Time) (wait time.Duration, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if now.Sub(i.turned) >= stateLife {
		i.before, i.used, i.turned = i.used, map[string]int{}, now
	}
	wait = max(0, i.next.Sub(now))
	switch {
	case i.used[state]+i.before[state] >= stateUses:
		return 0, bad("state was used too often: begin again")
	case wait > exchangePatience || len(i.used) >= maxStates:
		return 0, store.NewError(store.Overloaded, "Too many installations at once, try again later")
	}
	i.used[state]++
	i.next = now.Add(wait + exchangeGap)
	return wait, nil
}

func refusal(err error) error {
	if isRefusal(err) {
		return store.Wrap(store.InvalidArgument, "HubSpot refused the authorization: begin again", err)
	}
	return store.NewUnavailable("HubSpot does not answer, try again", err)
}

// keepPause is the first pause before tokens are written again. Writing is retried because the
// tokens are nowhere else; without them the portal would have to install the app again.
const keepPause = 200 * time.Millisecond
