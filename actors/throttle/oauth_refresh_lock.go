package throttle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"takt/actors/otp"
	"takt/store"
	"takt/store/backoff"
	"takt/store/hubspot"
)

// The messages.
type (
	wantToken struct { // call: get a token of a version above than
		portal, than int64
	}
	installed struct{ portal int64 } // cast: the portal has new tokens
	gotToken  struct {               // the result of a look-up or a refresh
		wantToken
		token Token
		until time.Time // when the token must be refreshed
		err   error
	}
)

const (
	// maxTokens is how many unsealed tokens are cached.
	maxTokens = 5000
	// refusedPause is how long a refused refresh is not tried again.
	refusedPause = 10 * time.Second
	// refreshMargin is how long before its expiry a token is refreshed, but at most a quarter
	// of its life.
	refreshMargin = 5 * time.Minute
	// refreshPoll is how often the row is read while another controller refreshes.
	refreshPoll = 100 * time.Millisecond
)

// entry is the actor's state of a portal's token.
type entry struct {
	token  Token
	until  time.Time // when the token must be refreshed
	err    error     // a refusal, remembered for refusedPause
	busy   bool
	askers []askedToken
}

type askedToken struct {
	want wantToken
	from otp.From
}

// refreshLock is the OAuthRefreshLock actor. It runs one look-up or refresh per portal at a
// time, and all callers that ask meanwhile get its result. The row in the database decides
// which of several controllers refreshes. A restart drops the unsealed tokens.
type refreshLock struct {
	otp.Base
	t       *Tokens
	entries map[int64]*entry
}

// Init implements otp.Server.
func (s *refreshLock) Init(*otp.Ctx) error {
	s.entries = map[int64]*entry{}
	return nil
}

// HandleCall answers with a cached token, or starts a look-up.
func (s *refreshLock) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	want, ok := req.(wantToken)
	if !ok {
		return s.Base.HandleCall(c, from, req)
	}
	e := s.entries[want.portal]
	if e == nil {
		if len(s.entries) >= maxTokens {
			s.forgetSome()
		}
		e = &entry{}
		s.entries[want.portal] = e
	}
	if time.Now().Before(e.until) && (e.err != nil || e.token.version > want.than) {
		return e.token, e.err
	}
	e.askers = append(e.askers, askedToken{want, from})
	s.begin(c, want, e)
	return otp.NoReply, nil
}

func (s *refreshLock) forgetSome() {
	for id, e := range s.entries {
		if !e.busy {
			delete(s.entries, id)
		}
	}
}

func (s *refreshLock) begin(c *otp.Ctx, want wantToken, e *entry) {
	if e.busy {
		return
	}
	e.busy = true
	t, hard := s.t, c.Context()
	c.Async(func(context.Context) any {
		// A stop does not end this, because tokens that HubSpot has issued must be stored.
		ctx, cancel := context.WithTimeoutCause(hard, t.patience(), errSlowRefresh)
		defer cancel()
		token, life, err := t.get(ctx, want)
		return gotToken{want, token, time.Now().Add(life), err}
	})
}

// HandleCast handles installed, which makes the cached token outdated.
func (s *refreshLock) HandleCast(c *otp.Ctx, msg any) {
	m, ok := msg.(installed)
	if !ok {
		s.Base.HandleCast(c, msg)
		return
	}
	if e := s.entries[m.portal]; e != nil {
		e.until, e.err = time.Time{}, nil
	}
}

// HandleInfo handles gotToken: it replies to all callers that wait for this token.
func (s *refreshLock) HandleInfo(c *otp.Ctx, msg any) {
	m, ok := msg.(gotToken)
	if !ok {
		s.Base.HandleInfo(c, msg)
		return
	}
	e := s.entries[m.portal]
	e.busy, e.err = false, nil
	switch {
	case m.err == nil:
		e.token, e.until = m.token, m.until
	case store.IsUnavailable(m.err):
		e.until = time.Time{}
	default:
		e.err, e.until = m.err, time.Now().Add(refusedPause)
	}
	askers := e.askers
	e.askers = nil
	for _, a := range askers {
		if m.err == nil && m.token.version <= a.want.than {
			// This caller needs a newer token than the look-up was for.
			e.askers = append(e.askers, a)
			continue
		}
		a.from.Reply(m.token, m.err)
	}
	if len(e.askers) > 0 {
		s.begin(c, e.askers[0].want, e)
	}
}

// get returns a portal's token, refreshed if needed, and how long it may be used before the
// next get.
func (t *Tokens) get(ctx context.Context, want wantToken) (Token, time.Duration, error) {
	for {
		k, err := t.db.Tokens(ctx, want.portal)
		if err != nil {
			return Token{}, 0, err
		}
		open, err := t.open(k)
		if err != nil {
			return Token{}, 0, err
		}
		left := k.ExpiresIn - t.margin(k.Life)
		if left > 0 && k.Version > want.than {
			return Token{open.Access, k.Version}, left, nil
		}
		version, fresh, err := t.refresh(ctx, k, open.Refresh)
		switch {
		case err != nil && k.ExpiresIn > t.call && k.Version > want.than && !isRefusal(err):
			return Token{open.Access, k.Version}, min(k.ExpiresIn-t.call, time.Minute), nil // this token is still valid for a while
		case err != nil:
			return Token{}, 0, err
		case version > 0:
			return Token{fresh.Access, version}, max(fresh.ExpiresIn-t.margin(fresh.ExpiresIn), time.Second), nil
		}
		// Another controller refreshes, or has just done so: read the row again.
		if backoff.Pause(ctx, refreshPoll) != nil {
			return Token{}, 0, store.NewUnavailable("Another controller's refresh takes too long", context.Cause(ctx))
		}
	}
}

func isRefusal(err error) bool {
	_, ok := errors.AsType[*hubspot.RefusedError](err)
	return ok
}

// margin returns how long before its expiry a token with this life is refreshed.
func (t *Tokens) margin(life time.Duration) time.Duration { return min(refreshMargin, life/4) }

// refresh refreshes this version of a portal's tokens if this controller gets the claim.
// version is 0 if it does not get the claim, or loses it meanwhile.
func (t *Tokens) refresh(ctx context.Context, k store.SealedTokens, refresh string) (version int64, fresh hubspot.Tokens, err error) {
	// The claim lasts longer than HubSpot's answer may take, so that no other controller
	// refreshes at the same time.
	claim, err := t.db.BeginRefresh(ctx, k.PortalID, k.Version, t.patience()+transactionTime)
	if err != nil || claim == 0 {
		return 0, fresh, err
	}
	fresh, err = t.hs.Refresh(ctx, t.app, refresh)
	if err != nil {
		t.metrics.refreshes.WithLabelValues("failed").Inc()
		if ferr := t.db.FailRefresh(ctx, k.PortalID, claim, explain(err)); ferr != nil && store.IsUnavailable(ferr) {
			err = errors.Join(err, ferr)
		}
		return 0, fresh, fmt.Errorf("refreshing the token of portal %d: %w", k.PortalID, err)
	}
	t.metrics.refreshes.WithLabelValues("done").Inc()
	sealed := t.seal(k.PortalID, fresh)
	err = persist(ctx, keepPause, func() (err error) {
		version, err = t.db.EndRefresh(ctx, claim, sealed)
		return err
	})
	return version, fresh, err
}
