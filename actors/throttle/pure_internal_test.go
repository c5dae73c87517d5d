package throttle

import (
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/hubspot"
	"takt/store/seal"
)

func TestQueues(t *testing.T) {
	t.Parallel()
	now := time.Now()
	take := func(l *queues, after time.Duration) []string { return l.take(now.Add(after)) }
	t.Run("a lone action waits a moment for company, a full batch does not", func(t *testing.T) {
		t.Parallel()
		l := newQueues(900*time.Millisecond, 0)
		l.get("q").period = time.Second
		l.arrive("q", 1, now)
		require.Empty(t, take(l, 9*time.Millisecond))
		require.Equal(t, []string{"q"}, take(l, 10*time.Millisecond))
		l.arrive("q", fullBatch, now)
		require.Equal(t, []string{"q"}, take(l, 0))
	})
	t.Run("nothing that comes in helps against a spent budget", func(t *testing.T) {
		t.Parallel()
		l := newQueues(time.Second, 0)
		l.arrive("q", 0, now)
		l.claimed(take(l, 0), store.Claims{Queues: []store.QueueDue{{Queue: "q", Waiting: true, At: now.Add(time.Minute), Blocked: true, Period: time.Hour}}}, now)
		l.arrive("q", 500, now)
		require.Empty(t, take(l, time.Minute-1))
		require.Equal(t, []string{"q"}, take(l, time.Minute))
		l.lookAgain(now)
		require.Equal(t, []string{"q"}, take(l, 0), "a changed rate does")
	})
	t.Run("a queue in which nothing waits is forgotten, unless something came meanwhile", func(t *testing.T) {
		t.Parallel()
		l := newQueues(time.Second, 0)
		l.arrive("q", 1, now)
		ids := take(l, time.Second)
		l.arrive("q", 1, now)
		empty := store.Claims{Queues: []store.QueueDue{{Queue: "q", Period: time.Second}}}
		l.claimed(ids, empty, now)
		require.Equal(t, []string{"q"}, l.ids())
		l.claimed(take(l, time.Second), empty, now)
		require.Empty(t, l.ids())
	})
	t.Run("budget comes back a period after the answer", func(t *testing.T) {
		t.Parallel()
		l := newQueues(time.Second, 50*time.Millisecond)
		l.arrive("q", 0, now)
		c := store.Claims{
			Claims: []store.Claim{
				{Number: 1, Actions: []store.ClaimedAction{{Queue: "q"}, {Queue: "q"}}},
				{Number: 2, Actions: []store.ClaimedAction{{Queue: "q"}}},
			},
			Queues: []store.QueueDue{{Queue: "q", Waiting: true, At: now.Add(time.Hour), Blocked: true, Period: time.Second}},
		}
		l.claimed(take(l, 0), c, now)
		l.ended(c.Claims[1], false, 0, now.Add(100*time.Millisecond))
		at, ok := l.next()
		require.True(t, ok)
		require.Equal(t, now.Add(1050*time.Millisecond), at, "a moment ahead")
		require.Equal(t, 1, l.byID["q"].running)
		l.ended(c.Claims[0], false, 0, now.Add(200*time.Millisecond))
		at, _ = l.next()
		require.Equal(t, now.Add(1050*time.Millisecond), at)
	})
	t.Run("the queue that waits longest is served first", func(t *testing.T) {
		t.Parallel()
		l := newQueues(0, 0)
		l.arrive("b", 0, now)
		l.arrive("a", 0, now.Add(time.Millisecond))
		require.Equal(t, []string{"b", "a"}, take(l, time.Second))
		l.retry([]string{"a"}, now.Add(time.Hour))
		at, _ := l.next()
		require.Equal(t, now.Add(time.Hour), at)
	})
}

func TestAPortalThatFailsIsCalledOnceAtATimeAndLater(t *testing.T) {
	t.Parallel()
	var s slowStart
	pause := func(k hubspot.Kind, full time.Duration) {
		got := s.after(k)
		require.True(t, full/2 <= got && got <= full, "%v is not between a half and all of %v", got, full)
	}
	for calls := 1; calls <= 8; calls++ {
		require.Equal(t, calls, s.calls(8), "each success allows one more")
		require.Zero(t, s.after(hubspot.Done))
	}
	require.Equal(t, 8, s.calls(8))
	for _, full := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
		pause(hubspot.Broken, full)
		require.Equal(t, 1, s.calls(8))
	}
	require.Zero(t, s.after(hubspot.Wait), "a rate limit is no failure")
	pause(hubspot.Silent, 4*time.Second)
	for range 30 {
		s.after(hubspot.Silent)
	}
	pause(hubspot.Silent, time.Minute)
	require.Zero(t, s.after(hubspot.Done))
	require.Equal(t, 2, s.calls(8), "it has to prove itself again")
	pause(hubspot.Silent, 500*time.Millisecond)
}

func TestStatesAreSignedAndTheirInstallersOwn(t *testing.T) {
	t.Parallel()
	oldRing, bothRing := seal.NewRing(seal.Key{}), seal.NewRing(seal.Key{1}, seal.Key{})
	old, both := newStates(oldRing), newStates(bothRing)
	tokens := Tokens{keys: oldRing, hs: hubspot.NewClient(hubspot.Config{}), app: hubspot.App{ClientID: "i", ClientSecret: "s", RedirectURL: "https://takt.example"}}
	var state, secret string
	for range 20_000 { // nobody's installation is blocked by them: there is no database
		at, s, err := tokens.Authorize(t.Context())
		require.NoError(t, err)
		u, err := url.Parse(at)
		require.NoError(t, err)
		require.NotEqual(t, state, u.Query().Get("state"))
		state, secret = u.Query().Get("state"), s
	}
	now := time.Now()
	for range 2 {
		require.True(t, old.good(state, secret, now))
		require.True(t, both.good(state, secret, now), "an old key's is good")
	}
	require.True(t, old.good(state, secret, now.Add(stateLife-2*time.Second)))
	require.False(t, old.good(state, secret, now.Add(stateLife+2*time.Second)))
	require.False(t, old.good(both.sign(secret, now.Add(stateLife)), secret, now), "a key that is not known")
	require.False(t, old.good(old.sign("", now.Add(stateLife)), "", now), "without a secret")
	for _, s := range []string{"", "x", secret[1:], secret + "x", "another"} {
		require.False(t, old.good(state, s, now), "%q", s)
	}
	for i := range state {
		forged := []byte(state)
		forged[i] = 'A' + (forged[i]-'A'+1)%26
		require.False(t, old.good(string(forged), secret, now), "letter %d", i)
	}
	require.False(t, old.good(state[:len(state)-2], secret, now))
	_, err := tokens.Install(t.Context(), state, "another", "code")
	require.Equal(t, store.InvalidArgument, store.CodeOf(err))
}

func TestInstallationsAreFewAndEachStateIsUsedAFewTimes(t *testing.T) {
	t.Parallel()
	var i installs
	now := time.Now()
	enter := func(state string) (time.Duration, store.Code) {
		wait, err := i.enter(state, now)
		return wait, store.CodeOf(err)
	}
	for n := range stateUses {
		wait, code := enter("s")
		require.Empty(t, code)
		require.Equal(t, time.Duration(n)*exchangeGap, wait, "one after the other")
	}
	for range 2 {
		_, code := enter("s")
		require.Equal(t, store.InvalidArgument, code)
		now = now.Add(stateLife) // it may have been made just before
	}
	now = now.Add(stateLife)
	wait, code := enter("s")
	require.Empty(t, code, "forgotten when it is not valid any more")
	require.Zero(t, wait)
	admitted := 0
	for n := range 1000 {
		if _, code := enter(strconv.Itoa(n)); code == "" {
			admitted++
		} else {
			require.Equal(t, store.Overloaded, code)
		}
	}
	require.Equal(t, int(exchangePatience/exchangeGap), admitted)
}
