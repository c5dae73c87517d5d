package throttle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"takt/actors/otp"
	"takt/actors/throttle/hubspot"
	"takt/store"
)

// Tokens is the handle of OAuthRefreshLock, and what portals' tokens are got and
// kept with.
type Tokens struct {
	ref     otp.Ref
	db      TokenStore
	hs      *hubspot.Client
	app     hubspot.App
	keys    *Keys
	metrics *metrics
	call    time.Duration // how long a call to HubSpot takes at most
}

// Spec describes the actor to its supervisor.
func (t *Tokens) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID: "oauth_refresh_lock", Server: func() otp.Server { return &refreshLock{t: t} },
		Shutdown: t.call + 2*transactionTime, // tokens that HubSpot has given are kept
	}
}

// Token opens a portal to this app.
type Token struct {
	Access  string
	version int64
}

// String shows nothing of it, should it ever be printed.
func (Token) String() string { return "(token)" }

// Access returns a token that is good for a while. Errors: NotFound (the portal is
// not installed), Unavailable (the database is away), what HubSpot refused it for.
func (t *Tokens) Access(ctx context.Context, portal int64) (Token, error) {
	return t.ask(ctx, wantToken{portal: portal})
}

// Renew returns another token than the one that HubSpot did not take: one that
// somebody has got meanwhile, or a new one.
func (t *Tokens) Renew(ctx context.Context, portal int64, refused Token) (Token, error) {
	return t.ask(ctx, wantToken{portal: portal, than: refused.version})
}

func (t *Tokens) ask(ctx context.Context, w wantToken) (Token, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.patience(), errSlowRefresh)
	defer cancel()
	return call[Token](ctx, t.ref, w)
}

// patience is how long a refresh may take, another controller's included.
func (t *Tokens) patience() time.Duration { return t.call + transactionTime }

var errSlowRefresh = errors.New("no token in time")

// explain says in a line why there is no token, without secrets.
func explain(err error) string {
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e.Message
	}
	if e, ok := errors.AsType[*hubspot.RefusedError](err); ok {
		return e.Error()
	}
	return err.Error()
}

// seal makes tokens fit for the database.
func (t *Tokens) seal(portal int64, k hubspot.Tokens) store.SealedTokens {
	return store.SealedTokens{
		PortalID: portal, KeyID: t.keys.ID(), ExpiresIn: k.ExpiresIn,
		Access: t.keys.seal(k.Access, portal, "access"), Refresh: t.keys.seal(k.Refresh, portal, "refresh"),
	}
}

// open is the reverse of seal.
func (t *Tokens) open(k store.SealedTokens) (open hubspot.Tokens, err error) {
	if open.Access, err = t.keys.open(k.KeyID, k.Access, k.PortalID, "access"); err == nil {
		open.Refresh, err = t.keys.open(k.KeyID, k.Refresh, k.PortalID, "refresh")
	}
	if err != nil {
		return hubspot.Tokens{}, fmt.Errorf("tokens of portal %d: %w", k.PortalID, err)
	}
	open.ExpiresIn = k.ExpiresIn
	return open, nil
}

// Authorize returns the URL of HubSpot's page on which a portal installs the app,
// and a secret that its installer brings back to Install. Nothing is remembered:
// the state is signed, good for ten minutes, and only together with the secret.
func (t *Tokens) Authorize(context.Context) (at, secret string, err error) {
	if t.app.ClientID == "" || t.app.ClientSecret == "" || t.app.RedirectURL == "" {
		return "", "", store.NewError(store.InvalidState, "HubSpot is not configured: client id, client secret and public URL are needed")
	}
	secret = rand.Text()
	return t.hs.AuthorizeURL(t.app, t.keys.signState(secret, time.Now().Add(stateLife))), secret, nil
}

// Install ends an authorization: it turns the code, which HubSpot takes once, into
// tokens, asks whose they are, and keeps them. InvalidArgument if the state is not
// one of ours, or another installer's, or HubSpot does not take the code.
func (t *Tokens) Install(ctx context.Context, state, secret, code string) (portal int64, err error) {
	if state == "" || code == "" {
		return 0, bad("state and code are required")
	}
	if !t.keys.goodState(state, secret, time.Now()) {
		return 0, bad("state is unknown, too old or another browser's: begin again")
	}
	k, err := t.hs.Exchange(ctx, t.app, code)
	if err != nil {
		return 0, refusal(err)
	}
	info, err := t.hs.Whose(ctx, k.Access)
	if err != nil {
		return 0, refusal(err)
	}
	sealed := t.seal(info.PortalID, k)
	if err := persist(ctx, keepPause, func() error { return t.db.Install(ctx, sealed) }); err != nil {
		return 0, err
	}
	otp.Cast(t.ref, installed{info.PortalID})
	return info.PortalID, nil
}

func refusal(err error) error {
	if _, ok := errors.AsType[*hubspot.RefusedError](err); ok {
		return store.Wrap(store.InvalidArgument, "HubSpot refused the authorization: begin again", err)
	}
	return store.NewUnavailable("HubSpot does not answer, try again", err)
}

// keepPause is the pause before tokens are written again. They exist nowhere else:
// losing them costs a new install.
const keepPause = 200 * time.Millisecond

// rekeyBatch is how many portals' tokens are sealed anew at once.
const rekeyBatch = 100

// Rekey seals everything anew that was sealed with another key than the current
// one, and returns how many portals that were. What no key opens is left and told.
func (t *Tokens) Rekey(ctx context.Context) (n int, err error) {
	var after int64
	var failed []error
	for {
		list, err := t.db.TokensOfOtherKeys(ctx, t.keys.ID(), after, rekeyBatch)
		if err != nil {
			return n, err
		}
		if len(list) == 0 {
			return n, unopened(failed)
		}
		for _, k := range list {
			after = k.PortalID
			open, err := t.open(k)
			if err != nil {
				failed = append(failed, err)
				continue
			}
			again := t.seal(k.PortalID, open)
			again.Version = k.Version
			done, err := t.db.Reseal(ctx, again)
			if err != nil {
				return n, err
			}
			if done { // else it was refreshed meanwhile, with the current key
				n++
			}
		}
	}
}

func unopened(failed []error) error {
	if len(failed) == 0 {
		return nil
	}
	return store.Wrap(store.InvalidState,
		fmt.Sprintf("%d portals' tokens cannot be opened with the keys given: add the key that sealed them", len(failed)), errors.Join(failed...))
}
